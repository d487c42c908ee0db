"""A real tool against kernels that say anything at all: only its own exceptions, a showable answer, a next run."""

from __future__ import annotations

import base64
import contextlib
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_tools.errors import ProtocolViolation, ToolServiceError
from agent_tools.execution import Output, Restarted, Stream
from agent_tools.runtime.kernel.zmtp import MAX_FRAMES, ZmtpSocket
from agent_tools.tools.render import markdown
from tests.fake_kernel import ATTACK, DELIMITER, GREETING, MORE, FakeEngine, FakeKernel, Turn, frame, sign, wire
from tests.under_attack import NewTool, assert_is_safe, tools_to_attack

LIMITS = {"idle_grace": 0.02, "start_timeout": 5.0}
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\0\0\0\1" * 2 + bytes(9)).decode()
HOSTILE = "a\x1b[31m\x1b]52;c;eA==\x07\ud800\x00\u202e\x9bm\r\b```\n\n![x](http://evil)"

bounded = settings(max_examples=100, deadline=None)


# -- strategies -------------------------------------------------------------------------------------------------------

TEXT = st.text(max_size=20) | st.sampled_from([HOSTILE, PNG, "idle", "stdout", "../x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)
MIME = st.sampled_from(["text/plain", "text/html", "image/png", "image/jpeg", "application/json", "image/svg+xml", "x"])
BUNDLE = st.dictionaries(MIME, JSON, max_size=4) | JSON
TRANSIENT = st.fixed_dictionaries({"display_id": JSON}) | JSON


def content_of(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[object]:
    """Any of these fields with what belongs there, or with anything; or no object at all."""
    return st.fixed_dictionaries({}, optional={name: value | JSON for name, value in fields.items()}) | JSON


CONTENTS: dict[str, st.SearchStrategy[object]] = {
    "stream": content_of(name=TEXT, text=TEXT | st.lists(TEXT, max_size=3)),
    "display_data": content_of(data=BUNDLE, metadata=JSON, transient=TRANSIENT),
    "update_display_data": content_of(data=BUNDLE, metadata=JSON, transient=TRANSIENT),
    "execute_result": content_of(data=BUNDLE, execution_count=JSON),
    "error": content_of(ename=TEXT, evalue=TEXT, traceback=st.lists(TEXT, max_size=3)),
    "clear_output": content_of(wait=st.booleans()),
    "status": content_of(execution_state=st.sampled_from(["busy", "idle", "starting"])),
    "execute_reply": content_of(status=st.sampled_from(["ok", "error", "aborted"]), payload=st.lists(JSON, max_size=2)),
    "execute_input": content_of(code=TEXT),
    "input_request": content_of(prompt=TEXT, password=st.booleans()),
    "comm_open": content_of(comm_id=TEXT, target_name=TEXT, data=JSON),
    "comm_msg": content_of(comm_id=TEXT, data=JSON),
    "shutdown_reply": content_of(restart=st.booleans()),
}
MESSAGE = st.sampled_from(sorted(CONTENTS)).flatmap(lambda kind: st.tuples(st.just(kind), CONTENTS[kind]))
MESSAGES = st.lists(MESSAGE, max_size=8)
CHANNEL = st.sampled_from(["shell", "iopub"])
PART = st.binary(max_size=30) | st.sampled_from([DELIMITER, b"{}", b"null", b'{"msg_type": "stream"}', b'{"a": NaN}'])
FRAMES = st.lists(PART, min_size=1, max_size=10)
PIECE = st.binary(max_size=60) | st.builds(frame, st.binary(max_size=300), st.integers(0, 7)) | st.just(GREETING)
WORD = st.sampled_from([b"exit", b"failed", b"0", b"1", b"code", b"signal", b"oom", b" ", b"-9"])
WORDS = st.binary(min_size=1, max_size=60) | st.lists(WORD | st.binary(max_size=5), min_size=1, max_size=6).map(
    b" ".join
)


# -- the host ---------------------------------------------------------------------------------------------------------


class Host:
    """One tool whose kernels answer each attack as they are told."""

    def __init__(self, new_tool: NewTool) -> None:
        self.engine = FakeEngine(lambda turn: turn.finish())
        self.tool = new_tool(self.engine)

    def attack(self, *steps: Callable[[Turn], object]) -> None:
        """Have a run answered like this and then ended; what comes of it can be shown, and the host goes on."""

        def script(turn: Turn) -> None:
            for step in steps:
                step(turn)
            turn.finish()

        self.engine.script = script
        execution = self.tool.run(ATTACK, timeout=10.0)
        assert_is_safe(markdown(execution))
        self.assert_goes_on()

    def assert_goes_on(self) -> None:
        """What was sent after a forged end may still end the next run, but never the one after, which says so."""
        outputs = self.tool.run("next").outputs
        if not is_honest(outputs):
            outputs = self.tool.run("next").outputs
            assert isinstance(outputs[0], Restarted)
        assert is_honest(outputs)


def is_honest(outputs: tuple[Output, ...]) -> bool:
    stream = outputs[-1] if outputs else None
    return isinstance(stream, Stream) and re.fullmatch(r"run \d+\n", stream.text) is not None


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with tools_to_attack(LIMITS) as new_tool:
        yield Host(new_tool)


# -- messages ---------------------------------------------------------------------------------------------------------


def send(channel: str, kind: str, content: object) -> Callable[[Turn], object]:
    return lambda turn: getattr(turn, channel).send([b"topic", *turn.pack(kind, content)])


@bounded
@given(MESSAGES, CHANNEL)
def test_any_content_of_any_message(host: Host, messages: list[tuple[str, object]], channel: str) -> None:
    host.attack(*(send(channel, kind, content) for kind, content in messages))


@bounded
@given(st.dictionaries(st.sampled_from(["header", "parent", "metadata"]), JSON | PART, min_size=1), CHANNEL)
def test_any_header_parent_and_metadata(host: Host, parts: dict[str, object], channel: str) -> None:
    host.attack(lambda turn: getattr(turn, channel).send(turn.pack("stream", {"text": "a"}, **parts)))


@bounded
@given(FRAMES, CHANNEL, st.booleans())
def test_any_frames(host: Host, frames: list[bytes], channel: str, is_signed: bool) -> None:
    def attack(turn: Turn) -> None:
        signed = [DELIMITER, sign(turn.kernel.key, frames[:4]), *frames]
        getattr(turn, channel).send(signed if is_signed else frames)

    host.attack(attack)


@settings(bounded, max_examples=40)  # a channel that was hung up is given half a second
@given(st.lists(PIECE, max_size=6), CHANNEL)
def test_any_bytes(host: Host, pieces: list[bytes], channel: str) -> None:
    def attack(turn: Turn) -> None:
        for piece in pieces:
            getattr(turn, channel).send_bytes(piece)
        getattr(turn, channel).hang_up()

    host.attack(attack)


@bounded
@given(st.lists(WORDS, max_size=5))
def test_any_words_of_pid_1(host: Host, datagrams: list[bytes]) -> None:
    host.attack(lambda turn: [turn.kernel.init.say(words) for words in datagrams])


@settings(max_examples=25, deadline=None)
@given(st.binary(max_size=100), st.binary(max_size=100), st.booleans())
def test_any_start(host: Host, shell: bytes, iopub: bytes, is_greeting: bool) -> None:
    def open_badly(kernel: FakeKernel) -> None:
        for channel, data in ((kernel.shell, shell), (kernel.iopub, iopub)):
            channel.send_bytes((GREETING if is_greeting else b"") + data)
            channel.hang_up()
        kernel.ended.wait(10.0)

    host.tool.close()
    host.engine.openings = [open_badly]
    with contextlib.suppress(ToolServiceError):
        host.tool.run("first")
    host.assert_goes_on()


# -- the reader of frames, alone --------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(PIECE, max_size=12), st.integers(0, 2000))
def test_any_pieces_are_whole_messages_within_the_limits_or_a_violation(pieces: list[bytes], limit: int) -> None:
    connected, peer = socket.socketpair()
    with connected, peer, contextlib.suppress(ProtocolViolation):
        reader = ZmtpSocket(connected, "SUB", limit)
        for piece in pieces:
            peer.sendall(piece)
            for message in reader.receive():
                assert 0 < len(message) <= MAX_FRAMES
                assert sum(map(len, message)) <= limit


@settings(deadline=None)
@given(st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=5), max_size=5), st.binary(max_size=9))
def test_noise_after_messages_takes_none_of_them_back(messages: list[list[bytes]], noise: bytes) -> None:
    found: list[list[bytes]] = []
    connected, peer = socket.socketpair()
    with connected, peer, contextlib.suppress(ProtocolViolation):
        peer.sendall(b"".join(map(wire, messages)) + frame(noise, MORE) + noise)
        found.extend(ZmtpSocket(connected, "SUB", 10_000).receive())  # keeps those before the violation
    assert found[: len(messages)] == messages
