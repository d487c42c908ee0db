"""A reply's connection: used again once the answer is at its end, and no longer waited for than needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agent_tools.errors import ModelError
from agent_tools.messages import USER, Message
from agent_tools.models import OpenAIModel
from agent_tools.models.base import Finish, TextDelta, Usage
from agent_tools.models.chunks import ChunkReader
from agent_tools.models.reply import _deltas, _hang_up
from agent_tools.settings import Endpoint
from tests.waiting import PATIENCE, until

SAID = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


class Server(ThreadingHTTPServer):
    """Answers each request with chunks; `ends` tells whether the answer ends after them.

    From request `silent_from` on, it does not answer, and reads what is sent once it `may_read`.
    """

    daemon_threads = True
    block_on_close = False
    silent_from = 1_000

    def __init__(self, chunks: list[bytes], *, ends: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.chunks, self.ends = chunks, ends
        self.is_asked, self.may_read = threading.Event(), threading.Event()
        self.connections = self.requests = self.hung_up = 0

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(f"http://127.0.0.1:{self.server_address[1]}/v1", "k")


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_POST(self) -> None:
        self.server.requests += 1
        if self.server.requests >= self.server.silent_from:
            self.server.is_asked.set()
            self.server.may_read.wait()
            while self.rfile.read1():
                pass
            self.server.hung_up += 1
            self.close_connection = True
            return
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for data in self.server.chunks:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        if self.server.ends:
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.rfile.read(1)  # until the client leaves
            self.server.hung_up += 1
            self.close_connection = True


New = Callable[..., tuple[Server, OpenAIModel]]


@pytest.fixture
def new() -> Iterator[New]:
    """Makes a server and a model on it."""
    with ExitStack() as stack:

        def make(chunks: list[bytes], *, ends: bool = True) -> tuple[Server, OpenAIModel]:
            server = stack.enter_context(Server(chunks, ends=ends))
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            stack.callback(server.shutdown)
            model = OpenAIModel("m", server.endpoint, {"max_retries": 0})
            stack.callback(model.close)
            return server, model

        yield make


def ask(model: OpenAIModel) -> None:
    """Ask, and wait until the thread that reads the reply has ended."""
    assert list(model.reply([Message(USER, "hi")])) == [TextDelta("a"), Finish("stop")]
    until(no_thread_reads)


def no_thread_reads() -> bool:
    return not any(each.name == "model-reply" for each in threading.enumerate())


@pytest.mark.parametrize("chunks", [[SAID, DONE], [SAID + DONE]], ids=["apart", "together"])
def test_a_connection_is_used_again(new: New, chunks: list[bytes]) -> None:
    server, model = new(chunks)
    for _ in range(3):
        ask(model)
    assert server.connections == 1


def test_a_server_that_does_not_end_its_answer_is_hung_up_on(new: New) -> None:
    server, model = new([SAID, DONE], ends=False)
    for _ in range(2):
        ask(model)
    until(lambda: server.hung_up == 2)
    assert server.connections == 2


def test_a_server_that_sends_nothing_after_the_finish_reason_is_hung_up_on(new: New) -> None:
    server, model = new([SAID], ends=False)
    ask(model)
    until(lambda: server.hung_up == 1)


def test_the_time_for_usage_begins_anew_with_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some servers give a finish reason with every piece."""
    running: list[object] = []

    class Timer(threading.Timer):
        def start(self) -> None:
            running.append(self)

        def cancel(self) -> None:
            running.remove(self)

    seen = []

    def arriving() -> Iterator[bytes]:
        for _ in range(3):
            yield SAID
            seen.append(list(running))

    monkeypatch.setattr(threading, "Timer", Timer)
    deltas = list(_deltas(arriving(), ChunkReader(), lambda: None))
    assert "".join(each.text for each in deltas if isinstance(each, TextDelta)) == "aaa"
    assert [len(each) for each in seen] == [1, 1, 1]
    assert len({id(each[0]) for each in seen}) == 3
    assert running == []


def test_a_server_that_goes_on_after_the_end_says_nothing_more(new: New) -> None:
    server, model = new([SAID, DONE, SAID])
    for _ in range(2):
        ask(model)
    assert server.connections == 1


def test_the_connection_of_an_answer_that_has_ended_is_not_hung_up(new: New, monkeypatch: pytest.MonkeyPatch) -> None:
    server, model = new([SAID, DONE])
    opened, send = [], model._open
    monkeypatch.setattr(model, "_open", lambda request: opened.append(send(request)) or opened[-1])
    ask(model)
    _hang_up(opened[0])
    ask(model)
    assert server.connections == 1


@pytest.mark.parametrize("answered", [0, 1], ids=["new connection", "used connection"])
@pytest.mark.parametrize("size", [2, 20_000_000], ids=["before the answer", "while it is sent"])
def test_a_reply_that_is_closed_before_the_answer_begins_ends_its_request(new: New, answered: int, size: int) -> None:
    server, model = new([SAID, DONE])
    for _ in range(answered):
        ask(model)
    server.silent_from = answered + 1
    reply = model.reply([Message(USER, "x" * size)])
    assert server.is_asked.wait(PATIENCE)
    reply.close()
    until(no_thread_reads)
    server.may_read.set()
    until(lambda: server.hung_up == 1)
    assert server.connections == 1


@pytest.mark.parametrize(
    ("failure", "detail"),
    [
        (b'{"error": {"message": "EngineDeadError", "code": "dead"}}', "EngineDeadError"),
        (b'{"error": "EngineDeadError"}', "EngineDeadError"),
        (b'{"object": "error", "message": "EngineDeadError", "type": "InternalServerError"}', "EngineDeadError"),
        (b'{"detail": "Internal error"}', "Internal error"),
        (b'{"detail": [{"msg": "Field required"}]}', "Field required"),
        (b'{"message": "Overloaded", "code": 503}', "Overloaded"),
    ],
)
@pytest.mark.parametrize("before", [[], [SAID.replace(b', "finish_reason": "stop"', b"")]])
@pytest.mark.parametrize("after", [[], [DONE]])
def test_an_error_in_a_stream_is_raised_in_every_form_that_servers_use(
    new: New, failure: bytes, detail: str, before: list[bytes], after: list[bytes]
) -> None:
    _, model = new([*before, b"data: " + failure + b"\n\n", *after])
    with pytest.raises(ModelError) as raised:
        list(model.reply([Message(USER, "x")]))
    assert raised.value.detail == detail


@pytest.mark.parametrize("end", [b" [DONE] ", b'"[DONE]"', b"[done]"])
def test_usage_may_come_after_the_end(new: New, end: bytes) -> None:
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3}}'
    _, model = new([b"data: null\n\n", SAID, b"data:" + end + b"\n\n", usage])
    assert list(model.reply([Message(USER, "x")])) == [TextDelta("a"), Usage(2, 3), Finish("stop")]


@pytest.mark.parametrize(
    "event",
    [
        b'{"errors": [{"message": "WORDS"}]}',
        b'{"id": "x", "code": 500, "message": "WORDS"}',
        b'{"success": false, "Error_Msg": "WORDS"}',
        b'{"type": "about:blank", "title": "Bad", "detail": "WORDS"}',
        b'{"choices": [{"delta": {"error": {"message": "WORDS"}}}]}',
        b'{"internalServerException": {"message": "WORDS"}}',
        b'{"error": true, "message": "WORDS"}',
        b'[{"error": {"code": 503, "message": "WORDS"}}]',
    ],
)
def test_words_of_a_failure_are_kept_in_any_shape(new: New, event: bytes) -> None:
    _, model = new([b"data: " + event + b"\n\n"])
    with pytest.raises(ModelError) as raised:
        list(model.reply([Message(USER, "x")]))
    assert raised.value.detail == "WORDS"


def test_words_that_are_no_events_are_kept(new: New) -> None:
    _, model = new([b"Internal Server Error"])
    with pytest.raises(ModelError) as raised:
        list(model.reply([Message(USER, "x")]))
    assert raised.value.detail == "Internal Server Error"


def test_usage_without_an_end_ends_a_stream(new: New) -> None:
    piece = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": null}]}\n\n'
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3}}\n\n'
    assert list(new([piece, usage])[1].reply([Message(USER, "x")])) == [TextDelta("a"), Usage(2, 3), Finish("stop")]
    with pytest.raises(ModelError, match="in the middle"):
        list(new([piece, usage, piece])[1].reply([Message(USER, "x")]))


def test_a_chunk_with_a_message_is_no_error(new: New) -> None:
    _, model = new([b'data: {"object": "chat.completion.chunk", "message": "m", "choices": []}\n\n', SAID, DONE])
    assert list(model.reply([Message(USER, "x")])) == [TextDelta("a"), Finish("stop")]
