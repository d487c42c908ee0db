"""A gateway in a process of its own, which can be killed.

Its sandboxes are processes, as everywhere in these tests.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import forkserver, util

import httpx
import openai
import pytest

from agent_tools.errors import InvalidParams
from agent_tools.gateway.config import read_config
from agent_tools.gateway.serving.run import serve
from agent_tools.runtime.runtime import Runtime
from tests.doubles import ProcessEngine

FORKS = multiprocessing.get_context("forkserver")


@pytest.fixture(scope="module")
def imported_once() -> Iterator[None]:
    """Have every gateway be the fork of one process, which has imported what they all need."""
    FORKS.set_forkserver_preload([__name__])
    with tempfile.TemporaryDirectory() as folder:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(util, "get_temp_dir", lambda: folder)  # its own would be there until the last test's end
            forkserver.ensure_running()
        try:
            yield
        finally:
            forkserver._forkserver._stop()  # type: ignore[attr-defined]


class Served:
    """One that runs."""

    def __init__(self, **settings: object) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        given = {"port": port, "pool": 0, "shutdown_grace": 0.1}
        self._said = tempfile.NamedTemporaryFile("r")  # noqa: SIM115  (it is gone with this object)
        self.process = FORKS.Process(target=main, args=({**given, **settings}, self._said.name))
        self.process.start()

    def wait(self) -> Served:
        """Return it once it answers."""
        while self.process.is_alive():
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"{self.url}/health")
                return self
            time.sleep(0.05)
        raise AssertionError(self.last_words)

    @property
    def last_words(self) -> str:
        """What it said, once it has ended."""
        self.process.join(60)
        assert self.process.exitcode is not None
        return self._said.read()

    @contextlib.contextmanager
    def client(self) -> Iterator[openai.OpenAI]:
        with openai.OpenAI(base_url=f"{self.url}/v1", api_key="any-key", max_retries=0, timeout=60) as client:
            yield client

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        self.process.join()

    def close(self) -> None:
        """Tell it to end, unless it has ended."""
        self.process.terminate()
        self.process.join(60)
        assert self.process.exitcode is not None
        self.process.close()


def main(settings: dict[str, object], log: str) -> None:
    """Serve; what is said goes to a file."""
    os.setsid()
    with open(log, "w") as said:
        os.dup2(said.fileno(), 2)
    os.environ.pop("PYTHONPATH", None)
    try:
        config = read_config({name: str(value) for name, value in settings.items()})
        runtime = Runtime(ProcessEngine(), lambda packages: "none")
        try:
            serve(config, runtime)
        finally:
            runtime.close_all()
    except InvalidParams as exc:
        sys.exit(exc.message)
