"""The docker SDK is imported without paramiko, and still reaches engines over ssh."""

from __future__ import annotations

import subprocess
import sys

import pytest


def said(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_engine_is_imported_without_paramiko_and_asyncio() -> None:
    code = "import sys, agent_tools.runtime.runtime; print([m for m in ('paramiko', 'asyncio') if m in sys.modules])"
    assert said(code) == "[]"


def test_an_engine_over_ssh_has_the_adapter_of_the_sdk() -> None:
    code = (
        "from agent_tools.engines.docker.connection import docker\n"
        "client = docker.APIClient(base_url='ssh://nowhere.invalid', version='1.41', use_ssh_client=True)\n"
        "print(type(client.get_adapter(client.base_url)).__module__)"
    )
    assert said(code) == "docker.transport.sshconn"


@pytest.mark.parametrize("first", ["docker", "agent_tools.engines.docker.connection"])
def test_whoever_imports_it_first_the_class_is_there(first: str) -> None:
    code = (
        f"import {first}\nfrom agent_tools.engines.docker.connection import docker\n"
        "from docker.transport.sshconn import SSHHTTPAdapter\nprint(SSHHTTPAdapter.__name__)"
    )
    assert said(code) == "SSHHTTPAdapter"


def test_without_paramiko_the_sdk_says_what_to_install() -> None:
    code = (
        "import sys\nsys.modules['paramiko'] = None\nfrom agent_tools.engines.docker.connection import docker\n"
        "try:\n    docker.APIClient(base_url='ssh://nowhere.invalid', version='1.41')\n"
        "except docker.errors.DockerException as exc:\n    print(exc)"
    )
    assert "Install paramiko" in said(code)
