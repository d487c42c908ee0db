"""A real tool against kernels that say anything at all: only its own exceptions, a showable answer, a next run."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_tools.errors import ToolServiceError
from agent_tools.results.execution import Output, Restarted, Stream
from agent_tools.tools.markdown import markdown
from tests.fake_kernel import ATTACK, CHANNELS, FakeEngine, FakeKernel, Turn, message, sizes
from tests.under_attack import NewTool, assert_is_safe, tools_to_attack

pytestmark = pytest.mark.cost

LIMITS = {"start_timeout": 5.0}
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\0\0\0\1" * 2 + bytes(9)).decode()
HOSTILE = "a\x1b[31m\x1b]52;c;eA==\x07\ud800\x00\u202e\x9bm\r\b```\n\n![x](http://evil)"

bounded = settings(max_examples=100)


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
CHANNEL = st.sampled_from([*CHANNELS.values()])
PART = st.binary(max_size=30) | st.sampled_from([b"{}", b"null", b'{"msg_type": "stream"}', b'{"a": NaN}'])
PARTS = st.lists(PART, max_size=10) | st.lists(PART, min_size=60, max_size=70)
SIZE = st.integers(0, 300) | st.sampled_from([2**16, 2**24, 2**24 + 1, 2**31, 2**32 - 1])
HEAD = st.builds(lambda channel, found: sizes(channel, *found), st.integers(0, 6), st.lists(SIZE, max_size=8))
WHOLE = st.builds(message, st.integers(1, 4), st.lists(st.binary(max_size=300), min_size=4, max_size=6))
PIECE = st.binary(max_size=60) | HEAD | WHOLE
WORD = st.sampled_from([b"exit", b"failed", b"0", b"1", b"7", b"/tmp", b" ", b"-9"])
ENDING = st.sampled_from([b"0 0 0", b"7 0 0", b"0 9 0", b"0 9 1", b"0 777 0", b"1 0 1"])
REPORT = st.builds(b"exit %d %s /tmp 0 0".__mod__, st.tuples(st.integers(0, 4), ENDING)) | st.sampled_from(
    [b"ready", b"failed 1 eA=="]
)
LINE = st.lists(WORD | st.binary(max_size=5), min_size=1, max_size=6).map(b" ".join)
WORDS = st.binary(min_size=1, max_size=60) | LINE | REPORT


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


def send(channel: int, kind: str, content: object) -> Callable[[Turn], object]:
    return lambda turn: turn.say(channel, kind, content)


@bounded
@given(MESSAGES, CHANNEL)
def test_any_content_of_any_message(host: Host, messages: list[tuple[str, object]], channel: int) -> None:
    host.attack(*(send(channel, kind, content) for kind, content in messages))


@bounded
@given(st.dictionaries(st.sampled_from(["header", "parent", "metadata"]), JSON | PART, min_size=1), CHANNEL)
def test_any_header_parent_and_metadata(host: Host, parts: dict[str, object], channel: int) -> None:
    host.attack(lambda turn: turn.say(channel, "stream", {"text": "a"}, **parts))


@bounded
@given(PARTS, st.integers(0, 255) | CHANNEL)
def test_any_parts(host: Host, parts: list[bytes], channel: int) -> None:
    host.attack(lambda turn: turn.wire.send(channel, parts))


@settings(bounded, max_examples=40)  # a channel that was hung up is given half a second
@given(st.lists(PIECE, max_size=6))
def test_any_bytes(host: Host, pieces: list[bytes]) -> None:
    def attack(turn: Turn) -> None:
        for piece in pieces:
            turn.wire.send_bytes(piece)
        turn.wire.hang_up()

    host.attack(attack)


@bounded
@given(st.lists(WORDS, max_size=5))
def test_any_words_of_pid_1(host: Host, datagrams: list[bytes]) -> None:
    host.attack(lambda turn: [turn.kernel.init.say(words) for words in datagrams])


@settings(max_examples=25)
@given(st.binary(max_size=100) | HEAD | WHOLE)
def test_any_start(host: Host, data: bytes) -> None:
    def open_badly(kernel: FakeKernel) -> None:
        kernel.wire.send_bytes(data)
        kernel.wire.hang_up()
        kernel.ended.wait(10.0)

    host.tool.close()
    host.engine.openings = [open_badly]
    with contextlib.suppress(ToolServiceError):
        host.tool.run("first", timeout=1.0)
    host.assert_goes_on()
