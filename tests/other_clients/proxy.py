"""LiteLLM's proxy as a process."""

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 240


@contextmanager
def proxied(base_url: str, key: str, model: str) -> Iterator[tuple[str, str]]:
    """Start a proxy before a server; yield its own base URL and key."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    given = {"model": f"openai/{model}", "api_base": base_url, "api_key": key}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.yaml")
        config.write_text(json.dumps({"model_list": [{"model_name": model, "litellm_params": given}]}))  # JSON is YAML
        command = [Path(sys.executable).with_name("litellm"), "--config", config, "--port", str(port)]
        own_key = f"sk-{secrets.token_hex(24)}"
        environment = {**os.environ, "LITELLM_MASTER_KEY": own_key}
        with subprocess.Popen(command, env=environment, stdout=sys.stderr, cwd=folder) as process:
            try:
                wait(f"http://127.0.0.1:{port}/health/liveliness", process)
                yield f"http://127.0.0.1:{port}/v1", own_key
            finally:
                process.terminate()


def wait(url: str, process: "subprocess.Popen[bytes]") -> None:
    """Wait until a server answers."""
    end = time.monotonic() + START_SECONDS
    while not answers(url):
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError("the proxy did not start")
        time.sleep(0.2)


def answers(url: str) -> bool:
    """Return True if a server answers."""
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True
