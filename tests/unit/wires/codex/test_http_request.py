"""The program that sends a request for a client, here as a process of the host."""

from __future__ import annotations

import base64
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from agent_tools.wires.codex.files import MAX_FILE
from agent_tools.wires.codex.http_request import Header, fetch
from agent_tools.wires.codex.messages import RpcError


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers with the fields of the request, or with as many bytes as the path says."""

    def do_GET(self) -> None:
        asked = self.path.strip("/")
        body = bytes(int(asked)) if asked else json.dumps(self.headers.items()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


class Host:
    """The host in place of a sandbox."""

    options = SimpleNamespace(isolation=SimpleNamespace(policy=()))

    def run_command(self, command: list[str], stdin: bytes, **_: Any) -> Any:
        ran = subprocess.run([sys.executable, *command[1:]], input=stdin, capture_output=True, env={})
        return SimpleNamespace(ok=not ran.returncode, reason="", stdout=ran.stdout, stderr=ran.stderr)


def test_fields_of_one_name_are_all_sent(url: str) -> None:
    given = [("X-List", "a"), ("x-list", "b"), ("Cookie", "a=1"), ("Cookie", "b=2")]
    headers = [Header(name=name, value=value) for name, value in given]
    sandbox: Any = Host()
    (answer,) = fetch(sandbox, "GET", url, "1", headers)
    sent = {name.lower(): value for name, value in json.loads(base64.b64decode(answer["bodyBase64"]))}
    assert (sent["x-list"], sent["cookie"]) == ("a, b", "a=1; b=2")


def test_a_body_that_is_too_long_is_an_error_and_not_cut(url: str) -> None:
    sandbox: Any = Host()
    assert len(base64.b64decode(fetch(sandbox, "GET", f"{url}{MAX_FILE}", "1")[0]["bodyBase64"])) == MAX_FILE
    with pytest.raises(RpcError, match=f"more than {MAX_FILE:,} bytes"):
        fetch(sandbox, "GET", f"{url}{MAX_FILE + 1}", "1")
