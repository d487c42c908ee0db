"""An upstream that notes what it was sent, to the byte, and answers as told; and a client that sends raw bytes."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

CHAT = (
    {"choices": [{"index": 0, "delta": {"content": "Ok."}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
)
RESPONSE = (
    {"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "content_index": 0, "delta": "Ok."},
    {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": []}},
)


@dataclass(frozen=True)
class Seen:
    """One request as it came: `target` is the raw path with its query."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    body: bytes = b"{}"
    kind: str = "application/json"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


def events(*found: Mapping[str, Any]) -> Answer:
    """An answer that is a stream."""
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in found) + "data: [DONE]\n\n"
    return Answer(text.encode(), "text/event-stream")


def answer(seen: Seen) -> Answer:
    if seen.method == "GET":
        return Answer()
    return events(*(CHAT if "chat" in seen.target else RESPONSE))


class HeldRefusal:
    """Answers 404; to a request for a chat once `is_free` is set, and sets `is_asked` before."""

    def __init__(self) -> None:
        self.is_asked, self.is_free = threading.Event(), threading.Event()

    def __call__(self, seen: Seen) -> Answer:
        if "chat" in seen.target:
            self.is_asked.set()
            self.is_free.wait()
        return Answer(status=404)


class Recorder:
    """Serves in a thread. `seen` is all that came."""

    def __init__(self, answer: Callable[[Seen], Answer] = answer) -> None:
        self.seen: list[Seen] = []
        self.answer = answer
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Connection)
        self._server.daemon_threads = True
        self._server.recorder = self  # type: ignore[attr-defined]
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Recorder:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        recorder: Recorder = self.server.recorder  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        method, target, _ = self.requestline.split(" ")
        seen = Seen(method, target, {name.lower(): value for name, value in self.headers.items()}, body)
        recorder.seen.append(seen)
        said = recorder.answer(seen)
        self.send_response(said.status)
        for name, value in {"Content-Type": said.kind, "Content-Length": len(said.body), **said.headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(said.body)

    do_POST = do_GET  # noqa: N815


def connect(url: str) -> socket.socket:
    """A connection to a gateway, for raw bytes."""
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=60)


def read_all(connection: socket.socket) -> bytes:
    """All that comes until the other side hangs up."""
    found = bytearray()
    try:
        while data := connection.recv(65536):
            found += data
    except ConnectionResetError:
        found += b"(reset)"
    return bytes(found)


def said_to(url: str, request: bytes) -> bytes:
    """Return what a gateway answers to some bytes, until it hangs up."""
    with connect(url) as connection:
        connection.sendall(request)
        return read_all(connection)


def asked(url: str, target: bytes, *headers: bytes, method: bytes = b"GET") -> bytes:
    """Return what it answers to a request line with exactly this target."""
    host = urlsplit(url).netloc.encode()
    lines = (b"%s %s HTTP/1.1" % (method, target), b"Host: " + host, b"Connection: close", *headers, b"", b"")
    return said_to(url, b"\r\n".join(lines))
