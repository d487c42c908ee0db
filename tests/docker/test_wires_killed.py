"""SIGKILL of a wire's client ends its code, and SIGKILL of the gateway ends every container."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from agent_tools.machine.machine import start_time
from agent_tools.machine.owner import Owner
from agent_tools.runtime.runtime import Runtime
from agent_tools.runtime.runtime import docker_runtime as runtime_of_docker
from agent_tools.tools import CodeInterpreter
from agent_tools.wires import WIRES
from tests.docker import wire_client
from tests.gateway.asking import until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]
KEY = "sk-" + "k" * 40


class Serving:
    """A gateway with all wires, in a process of its own."""

    def __init__(self, folder: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._folder = folder
        command = [sys.executable, "-m", "agent_tools", "serve", "--upstream", "http://127.0.0.1:9/v1"]
        command += ["--api-key", KEY, "--port", str(port), "--data-dir", str(folder)]
        command += [part for wire in WIRES for part in ("--wire", wire)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: self._answers() or self.process.poll() is not None)
        self._labels = Owner(Owner.current().host, self.process.pid, start_time(self.process.pid) or 0).labels

    def _answers(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/health").status_code == 200
        return False

    @property
    def containers(self) -> int:
        return len(runtime_of_docker().engine.strays(self._labels))

    @property
    def beats(self) -> list[str]:
        """What code that runs has written last."""
        with contextlib.suppress(FileNotFoundError):  # a container is being deleted
            return [beat.read_text() for beat in self._folder.rglob("beat")]
        return []

    def stands_still(self) -> bool:
        """Whether no code has written in the last half second."""
        before = self.beats
        time.sleep(0.5)
        return self.beats == before

    def forget(self) -> None:
        """Delete what code has written."""
        for beat in self._folder.rglob("beat"):
            beat.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def serving(docker_runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("data")
    with CodeInterpreter({"work_dir": str(folder)}, runtime=docker_runtime) as tool:
        assert tool.run("1").ok  # so that the image is there
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    found = Serving(folder, port)
    yield found
    found.process.kill()
    found.process.wait()


def client(serving: Serving, wire: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", wire_client.__name__, serving.url, wire, KEY]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("wire", WIRES)
def test_a_killed_client_ends_its_code(serving: Serving, wire: str) -> None:
    serving.forget()
    with client(serving, wire) as killed:
        until(lambda: any(serving.beats))
        killed.kill()
    until(lambda: serving.stands_still())


def test_a_killed_gateway_leaves_no_container(serving: Serving) -> None:
    serving.forget()
    clients = [client(serving, wire) for wire in WIRES]
    until(lambda: len([beat for beat in serving.beats if beat]) == len(WIRES))
    assert serving.containers >= len(WIRES)
    serving.process.kill()
    for each in clients:
        each.wait()
    until(lambda: serving.containers == 0)
