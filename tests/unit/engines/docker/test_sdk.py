"""The docker SDK is imported without what only ssh engines need, unless that is installed."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.ssh import PYTHONPATH

WITHOUT_PARAMIKO = "import sys\nsys.modules['paramiko'] = None\n"


def said(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_engine_is_imported_without_asyncio() -> None:
    code = f"{WITHOUT_PARAMIKO}import agent_tools.runtime.runtime\nprint('asyncio' in sys.modules)"
    assert said(code) == "False"


def test_an_engine_over_ssh_has_the_adapter_of_the_sdk() -> None:
    code = (
        "from agent_tools.engines.docker.connection import docker\n"
        "client = docker.APIClient(base_url='ssh://nowhere.invalid', version='1.41', use_ssh_client=True)\n"
        "print(type(client.get_adapter(client.base_url)).__module__)"
    )
    assert said(code) == "docker.transport.sshconn"


def test_without_paramiko_the_sdk_says_what_to_install() -> None:
    code = (
        f"{WITHOUT_PARAMIKO}from agent_tools.engines.docker.connection import docker\n"
        "try:\n    docker.APIClient(base_url='ssh://nowhere.invalid', version='1.41')\n"
        "except docker.errors.DockerException as exc:\n    print(exc)"
    )
    assert "Install paramiko" in said(code)
