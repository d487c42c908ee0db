"""From `pip install` to the first answer on an engine without images, pulled and built. `scripts/release` runs this.

The engine has a network namespace with nothing but a registry and a proxy in it: the base image comes from a private
registry, the packages through HTTPS_PROXY. The times are printed, since they are the machine's.
"""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_tools.engines.context import tag_for
from agent_tools.engines.docker import image
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.recipe import Recipe
from agent_tools.extras import DISTRIBUTION
from supply import release
from tests.docker.test_images import free_port, registry
from tests.release.bundle import Island, island, load
from tests.release.installing import PYPI, built, index_of

__all__ = ["built", "island"]
pytestmark = [
    pytest.mark.docker,
    pytest.mark.needs_root(reason="only root can start an engine of the tests' own, in a network of its own"),
    pytest.mark.timeout(3600),
]
FIGURE = "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show(); print(6 * 7)"
LISTEN = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [b"x"], [listener.fileno()])
"""


class Proxy(socketserver.BaseRequestHandler):
    """A proxy that makes tunnels, from where it listens to this machine's network."""

    asked: list[str]

    def handle(self) -> None:
        head = self.request.recv(4096)  # clients send it at once
        if not head.startswith(b"CONNECT "):
            return
        host, _, port = head.split()[1].decode().rpartition(":")
        self.asked.append(host)
        try:
            far = socket.create_connection((host, int(port)), 30)
        except OSError:
            self.request.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            return
        with far:
            self.request.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=_copy, args=(far, self.request), daemon=True)
            back.start()
            _copy(self.request, far)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def proxy_in(inside: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Listen in a network namespace, and connect in this one; yield the proxy's URL, and the hosts it is asked for."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        subprocess.run(
            [*inside, sys.executable, "-c", LISTEN, str(theirs.fileno())], pass_fds=[theirs.fileno()], check=True
        )
        _, [listener], _, _ = socket.recv_fds(ours, 1, 1)
    asked: list[str] = []
    handler = type("OwnProxy", (Proxy,), {"asked": asked})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler, bind_and_activate=False) as server:
        server.daemon_threads = True
        server.socket.close()
        server.socket = socket.socket(fileno=listener)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}", asked
        finally:
            server.shutdown()
            thread.join()


def test_a_figure_is_there_within_minutes_of_pip_install(
    island: Island, built: Path, docker_engine: DockerEngine, work_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = ["nsenter", f"--net=/proc/{island.process.pid}/ns/net"]
    subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
    port, images = free_port(), work_dir / "registry"
    with registry(images, port) as repository:
        tag = tag_for()
        pushed = release.push(docker_engine, repository, Recipe())
        base = f"{repository.partition('/')[0]}/python:3.13-slim-trixie"
        docker_engine.tag_image(image.ensure_base(docker_engine), base)
        docker_engine.remove_image(pushed)
        for line in docker_engine.connection.api(is_patient=True).push(base, stream=True, decode=True):
            assert "error" not in line, line
        docker_engine.remove_image(base)
    with registry(images, port, *inside) as repository, proxy_in(inside) as (proxy, asked), index_of(built) as index:
        pulled = {"AGENT_TOOLS_IMAGE_REPOSITORY": repository}
        of_build = {"AGENT_TOOLS_BASE_IMAGE": base, "HTTPS_PROXY": proxy, "NO_PROXY": "127.0.0.1"}
        for name, environ in (("pulled", pulled), ("built", {"AGENT_TOOLS_IMAGE_REPOSITORY": "none", **of_build})):
            folder, begun = work_dir / name, time.monotonic()
            command = installed(folder, index)
            between = time.monotonic()
            arguments = ["run", "--work-dir", folder, "-c", FIGURE]
            drawn = _run(command, *arguments, **environ, DOCKER_HOST=f"unix://{island.socket}")
            took = f"pip {between - begun:.0f} s, then the first figure {time.monotonic() - between:.0f} s"
            assert drawn.stdout == "42\n"
            assert (folder / "figure-001.png").read_bytes().startswith(b"\x89PNG")
            assert tag in "".join(drawn.stderr.split("\n"))
            with capsys.disabled():
                print(f"\n{name}: {took}; {load()}")
            for known in _run("docker", "-H", f"unix://{island.socket}", "images", "-q").stdout.split():
                _run("docker", "-H", f"unix://{island.socket}", "rmi", "-f", known)
        assert "pypi.org" in asked


def installed(folder: Path, index: str) -> Path:
    """Install the wheel as a new user does, into a virtual environment, without pip's cache; return the command."""
    folder.mkdir()
    _run(sys.executable, "-m", "venv", folder / "venv")
    pip = (folder / "venv/bin/python", "-m", "pip", "install", "--no-cache-dir")
    _run(*pip, f"--index-url={index}", f"--extra-index-url={PYPI}", DISTRIBUTION)
    return folder / "venv/bin/agent-tools"


def _run(*command: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done
