"""An OpenAI-compatible server that follows a script, on a port of this machine, for tests of its clients."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Union

from agent_tools.errors import ModelError
from agent_tools.models.base import (
    ArgumentsDelta,
    CallComplete,
    CallStarted,
    Conversation,
    Delta,
    Finish,
    FunctionDefinition,
    Json,
    JsonObject,
    Options,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    Usage,
)
from agent_tools.models.wire import wire_messages, wire_tools, wire_usage
from agent_tools.settings import Endpoint

# The replies of a scripted model, as values and as the chunks of a server.


@dataclass(frozen=True)
class ScriptedCall:
    """A call that the model makes. Arguments in a dict are written as JSON; without an `id` it gets `call_<index>`."""

    name: str
    arguments: str | Json = ""
    id: str | None = None

    @property
    def text(self) -> str:
        """Return the arguments as the model writes them."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True)
class ScriptedReply:
    """One reply of a scripted model, with the manner of its delivery.

    Attributes:
        text, reasoning, calls, refusal: the content of the reply.
        usage: the tokens it reports; None leaves them out.
        finish_reason: by default `tool_calls` if there are calls, else `stop`.
        piece: characters in one delta; 0 puts all into one.
        status: an HTTP status other than 200 makes the reply an error (of the server; a `ModelError` of the model).
        error: the error's `message`; with status 200, an error in the stream, after the whole content.
        headers: further HTTP headers.
        wait_before: an event waited for before the first byte.
        wait_midway: an event waited for once half of the chunks are sent.
        cut_after: the number of chunks before the connection is cut; None sends all.
        chunks: chunks that are sent as they are, instead of those made of the content; for deviating servers.
    """

    text: str = ""
    reasoning: str = ""
    calls: Sequence[ScriptedCall] = ()
    refusal: str = ""
    usage: Usage | None = Usage(10, 5)  # noqa: RUF009  (frozen)
    finish_reason: str | None = None
    piece: int = 0
    status: int = 200
    error: str = ""
    headers: Mapping[str, str] | None = None
    wait_before: threading.Event | None = None
    wait_midway: threading.Event | None = None
    cut_after: int | None = None
    chunks: Sequence[Json] | None = None

    @property
    def reason(self) -> str:
        """Return the finish reason."""
        return self.finish_reason or ("tool_calls" if self.calls else "stop")

    def deltas(self) -> Iterator[Delta]:
        """Yield the reply as a model's deltas."""
        yield from (ReasoningDelta(piece) for piece in self._pieces(self.reasoning))
        yield from (TextDelta(piece) for piece in self._pieces(self.text))
        yield from (RefusalDelta(piece) for piece in self._pieces(self.refusal))
        for index, call in enumerate(self.calls):
            id_ = call.id or f"call_{index}"
            yield CallStarted(index, id_, call.name)
            yield from (ArgumentsDelta(index, piece) for piece in self._pieces(call.text))
            yield CallComplete(index, id_, call.name, call.text)
        if self.usage:
            yield self.usage
        yield Finish(self.reason)

    def message(self) -> JsonObject:
        """Return the reply as one message of chat completions."""
        message: JsonObject = {"role": "assistant", "content": self.text or None}
        if self.refusal:
            message["refusal"] = self.refusal
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": call.id or f"call_{index}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.text},
                }
                for index, call in enumerate(self.calls)
            ]
        return message

    def wire_chunks(self) -> Iterator[Json]:
        """Yield the reply as the chunks of a stream; the last has the usage."""
        if self.chunks is not None:
            yield from self.chunks
            return
        yield _chunk({"role": "assistant", "content": ""})
        for delta in self.deltas():
            match delta:
                case RefusalDelta(text):
                    yield _chunk({"refusal": text})
                case TextDelta(text):
                    yield _chunk({"content": text})
                case ReasoningDelta(text):
                    yield _chunk({"reasoning_content": text})
                case CallStarted(index, id_, name):
                    yield _call_chunk(index, {"name": name, "arguments": ""}, {"id": id_, "type": "function"})
                case ArgumentsDelta(index, text):
                    yield _call_chunk(index, {"arguments": text}, {})
                case Finish(reason):
                    yield _chunk({}, reason)
        if self.usage:
            yield {"choices": [], "usage": wire_usage(self.usage)}

    def _pieces(self, text: str) -> list[str]:
        size = self.piece or max(1, len(text))
        return [text[start : start + size] for start in range(0, len(text), size)]


Script = Union[ScriptedReply, str, Sequence[Union[ScriptedReply, str]], Callable[[JsonObject], ScriptedReply]]
"""Replies in order, where a text stands for a reply, or a function that returns the reply to a request (a dict)."""


class Replies:
    """Hands out the replies of a script. For any thread."""

    def __init__(self, script: Script) -> None:
        self._function = script if callable(script) else None
        listed = [script] if isinstance(script, (str, ScriptedReply)) else [] if callable(script) else list(script)
        self._left = [ScriptedReply(text=each) if isinstance(each, str) else each for each in listed]
        self._lock = threading.Lock()

    def next(self, request: JsonObject) -> ScriptedReply:
        """Return the reply to a request; an error once the script is used up."""
        if self._function is not None:
            return self._function(request)
        with self._lock:
            return self._left.pop(0) if self._left else ScriptedReply(status=500, error="The script is used up.")


def _chunk(delta: JsonObject, reason: str | None = None) -> JsonObject:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def _call_chunk(index: int, function: JsonObject, more: JsonObject) -> JsonObject:
    return _chunk({"tool_calls": [{"index": index, **more, "function": function}]})


# A model that follows a script.


@dataclass(frozen=True)
class RecordedRequest:
    """A request to a scripted model, as it would have been sent to a server."""

    messages: list[JsonObject]
    tools: list[JsonObject]
    options: JsonObject


class ScriptedModel:
    """A `Model` without a server, for tests of agents.

        model = ScriptedModel(["Hello!", ScriptedReply(calls=[ScriptedCall("code_interpreter", {"code": "1 + 1"})])])

    The replies answer one request each, in order. A reply with an HTTP status other than 200 raises `ModelError`, as
    does a request after the last reply. `asked` holds the requests, `closed` counts the replies that were closed early.
    """

    def __init__(self, script: Script) -> None:
        self.asked: list[RecordedRequest] = []
        self.closed = 0
        self._replies = Replies(script)

    def reply(
        self,
        messages: Conversation,
        tools: Sequence[FunctionDefinition] = (),
        options: Options | None = None,
    ) -> Iterator[Delta]:
        """Yield the next reply of the script."""
        asked = RecordedRequest(wire_messages(messages), wire_tools(tools), dict(options or {}))
        self.asked.append(asked)
        return self._play(
            self._replies.next({"messages": asked.messages, "tools": asked.tools, **asked.options}),
        )

    def _play(self, reply: ScriptedReply) -> Iterator[Delta]:
        if reply.status != 200:
            raise ModelError(f"The scripted model answered {reply.status}.", reply.status, detail=reply.error)
        if reply.wait_before:
            reply.wait_before.wait()
        deltas = list(reply.deltas())
        try:
            for number, delta in enumerate(deltas):
                if number == reply.cut_after:
                    raise ModelError("The scripted model broke off.", is_retryable=True)
                if reply.wait_midway and number == len(deltas) // 2:
                    reply.wait_midway.wait()
                yield delta
        except GeneratorExit:
            self.closed += 1
            raise
        if reply.error:
            raise ModelError("The scripted model ended its answer with an error.", detail=reply.error)


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
