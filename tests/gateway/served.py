"""A gateway in a process of its own, which can be killed: `python -m tests.gateway.served NAME=VALUE ...`.

Its sandboxes are processes, as everywhere in these tests.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import openai

from agent_tools.errors import InvalidParams
from agent_tools.gateway.config import read_config
from agent_tools.gateway.serving.serve import serve
from agent_tools.runtime.runtime import Runtime
from tests.doubles import ProcessEngine


class Served:
    """One that runs."""

    def __init__(self, **settings: object) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        given = {"port": port, "pool": 0, "shutdown_grace": 0.1, "address": self.url, "shared_secret": "our-secret"}
        words = [f"{name}={value}" for name, value in {**given, **settings}.items()]
        command = [sys.executable, "-m", "tests.gateway.served", *words]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def wait(self) -> Served:
        """Return it once it answers."""
        while self.process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"{self.url}/health")
                return self
            time.sleep(0.05)
        raise AssertionError(self.last_words)

    @property
    def last_words(self) -> str:
        """What it said, once it has ended."""
        return self.process.communicate(timeout=60)[1]

    @contextlib.contextmanager
    def client(self) -> Iterator[openai.OpenAI]:
        with openai.OpenAI(base_url=f"{self.url}/v1", api_key="any-key", max_retries=0, timeout=60) as client:
            yield client

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)


def main() -> None:
    os.environ.pop("PYTHONPATH", None)
    try:
        config = read_config(dict(word.partition("=")[::2] for word in sys.argv[1:]))
        runtime = Runtime(ProcessEngine(), lambda packages: "none")
        try:
            serve(config, runtime)
        finally:
            runtime.close_all()
    except InvalidParams as exc:
        sys.exit(exc.message)


if __name__ == "__main__":
    main()
