"""A server of Jupyter's API with kernels in sandboxes, as a process of its own."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

BIN = Path(sys.executable).parent
PATIENCE = 60.0  # seconds


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    port: int
    token: str
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def status(self, path: str, token: str = "") -> int:
        """The status that a GET is answered with."""
        try:
            return int(urllib.request.urlopen(f"{self.url}{path}?token={token or self.token}").status)
        except urllib.error.HTTPError as exc:
            return exc.code


@contextmanager
def serving(*options: str, log: Path | None = None) -> Iterator[Served]:
    """A server with these options, which logs to a file or to this process's terminal."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(8)
    command = [BIN / "agent-tools", "jupyter", "serve", "--port", str(port), *options]
    environment = {**os.environ, "AGENT_TOOLS_JUPYTER_TOKEN": token}
    with log.open("wb") if log else nullcontext() as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file and subprocess.STDOUT)
    served = Served(port, token, process)
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                served.status("/api")
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.2)
        yield served
    finally:
        process.terminate()
        process.wait(PATIENCE)
