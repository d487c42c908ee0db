"""An OpenAI-compatible server that follows a script, on a port of this machine, for tests of its clients."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from agent_tools.models.base import Json, JsonObject
from agent_tools.models.wire import wire_usage
from agent_tools.settings import Endpoint
from agent_tools.testing.replies import Replies, Script, ScriptedReply


class ScriptedServer:
    """Serves `/v1/chat/completions` (streamed or not) and `/v1/models`, each model with a script of its own.

        with ScriptedServer({"friendly": ["Hello!"], "busy": ScriptedReply(status=429)}) as server:
            client = openai.OpenAI(base_url=server.base_url, api_key="any")

    `port` is a free one by default.

    Attributes:
        requests: the bodies of all requests for completions, in order.
        headers: their headers, with lower-case names.
        hung_up: set once a client has left before the end of an answer.
    """

    def __init__(self, models: Mapping[str, Script], api_key: str | None = None, port: int = 0) -> None:
        self.requests: list[JsonObject] = []
        self.headers: list[dict[str, str]] = []
        self.hung_up = threading.Event()
        self.replies = {name: Replies(script) for name, script in models.items()}
        self.api_key = api_key
        self._server = _Server(("127.0.0.1", port), _Connection)
        self._server.script = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def base_url(self) -> str:
        """Return the base URL for clients."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def endpoint(self) -> Endpoint:
        """Return URL and key, for models of this package."""
        return Endpoint(self.base_url, self.api_key or "none")

    def start(self) -> ScriptedServer:
        """Serve until this process ends; as a context it serves until the block ends."""
        self._thread.start()
        return self

    __enter__ = start

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """The HTTP server, which does not wait for its connections when it is closed."""

    daemon_threads = True
    block_on_close = False
    script: ScriptedServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error of a client that leaves."""


class _Connection(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else every small chunk waits for the client's acknowledgement
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing."""

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            self._error(404, "There is no such page.")
            return
        names = [{"id": name, "object": "model", "owned_by": "script"} for name in self.server.script.replies]
        self._json(200, {"object": "list", "data": names})

    def do_POST(self) -> None:
        script = self.server.script
        request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        model = request.get("model")
        if self.path != "/v1/chat/completions":
            self._error(404, "There is no such page.")
        elif script.api_key and self.headers.get("Authorization") != f"Bearer {script.api_key}":
            self._error(401, f"Incorrect API key provided: {self.headers.get('Authorization')}")
        elif model not in script.replies:
            self._error(404, f"The model {model} does not exist.")
        else:
            script.headers.append({name.lower(): value for name, value in self.headers.items()})
            script.requests.append(request)
            try:
                self._answer(script.replies[model].next(request), request)
            except OSError:
                script.hung_up.set()
                self.close_connection = True

    def _answer(self, reply: ScriptedReply, request: JsonObject) -> None:
        if reply.wait_before:
            self._wait(reply.wait_before)
        if reply.status != 200:
            self._error(reply.status, reply.error or "scripted", reply.headers)
        elif request.get("stream"):
            self._stream(reply, request)
        else:
            choice = {"index": 0, "message": reply.message(), "finish_reason": reply.reason}
            usage = {"usage": wire_usage(reply.usage)} if reply.usage else {}
            whole = {**_envelope(request["model"], "chat.completion"), "choices": [choice], **usage}
            self._json(200, whole, reply.headers)

    def _stream(self, reply: ScriptedReply, request: JsonObject) -> None:
        self._head(200, "text/event-stream", {"Transfer-Encoding": "chunked", **(reply.headers or {})})
        wants_usage = reply.chunks is not None or (request.get("stream_options") or {}).get("include_usage")
        chunks = [chunk for chunk in reply.wire_chunks() if wants_usage or chunk.get("choices")]
        envelope = _envelope(request["model"], "chat.completion.chunk")
        for number, chunk in enumerate(chunks):
            if number == reply.cut_after:
                self._cut()
                return
            if reply.wait_midway and number == len(chunks) // 2:
                self._wait(reply.wait_midway)
            self._send({**envelope, **chunk})
        if reply.error:
            self._send({"error": {"message": reply.error, "type": "server_error", "code": None}})
        self._write(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _wait(self, event: threading.Event) -> None:
        """Wait for the event, or until the client leaves."""
        while not event.wait(0.01):
            with contextlib.suppress(BlockingIOError):
                if not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                    raise BrokenPipeError

    def _cut(self) -> None:
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def _send(self, event: Json) -> None:
        self._write(f"data: {json.dumps(event)}\n\n".encode())

    def _write(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _error(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        self._json(status, {"error": error}, headers)

    def _json(self, status: int, body: Json, headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self._head(status, "application/json", {"Content-Length": str(len(data)), **(headers or {})})
        self.wfile.write(data)

    def _head(self, status: int, kind: str, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        fields: Iterable[tuple[str, str]] = {"Content-Type": kind, **headers}.items()
        for name, value in fields:
            self.send_header(name, value)
        self.end_headers()


def _envelope(model: str, kind: str) -> JsonObject:
    return {"id": "chatcmpl-scripted", "object": kind, "created": 0, "model": model}
