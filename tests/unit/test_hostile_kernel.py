"""A real tool against kernels that do what no kernel should: what comes of it, and of the next run."""

from __future__ import annotations

import atexit
import base64
import contextlib
import itertools
import json
import os
import re
import shutil
import struct
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_tools.errors import ToolServiceError
from agent_tools.execution import Died, Display, Error, Execution, Omitted, Output, Restarted, Result, Stream, TimedOut
from agent_tools.runtime.runtime import Runtime
from agent_tools.settings import MIB
from agent_tools.text import fence
from agent_tools.tools import CodeInterpreter
from agent_tools.tools.render import NOTHING, markdown
from tests.fake_kernel import (
    ATTACK,
    COMMAND,
    DELIMITER,
    GREETING,
    LONG,
    MORE,
    FakeEngine,
    FakeKernel,
    Opening,
    Script,
    Turn,
    frame,
    open_honestly,
)

LIMITS = {"interrupt_grace": 0.1, "kill_grace": 0.1, "idle_grace": 0.2, "restart_timeout": 0.3, "start_timeout": 1.0}
LONG_ENOUGH = 20.0  # a time limit that nothing here meets
PATIENCE = 3.0  # seconds a call may take beyond its time limit
GROWTH = 100 * MIB  # of this process, with what the fake kernel itself holds
HEADINGS = {f"{name}:" for name in ("stdout", "stderr", "execute_result", "display_data", "error", "note")}
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


# -- the host under attack --------------------------------------------------------------------------------------------

NewTool = Callable[..., CodeInterpreter]


@pytest.fixture
def new_tool(monkeypatch: pytest.MonkeyPatch) -> Iterator[NewTool]:
    """Makes tools on fake sandboxes; when they are closed, nothing of them may be left."""
    folder = Path(tempfile.mkdtemp(prefix="at-", dir="/tmp"))
    monkeypatch.setenv("AGENT_TOOLS_RUN_DIR", str(folder))
    before = held(folder)

    with contextlib.ExitStack() as opened:

        def make(engine: FakeEngine) -> CodeInterpreter:
            runtime = Runtime(engine, lambda packages: "none")
            atexit.unregister(runtime.close_all)
            return opened.enter_context(
                CodeInterpreter({"work_dir": str(folder / "work"), "limits": LIMITS}, runtime=runtime)
            )

        yield make
    assert held(folder) == before
    shutil.rmtree(folder)


def held(folder: Path) -> tuple[int, list[str], list[str]]:
    """Descriptors, threads, and what is in the run directory."""
    threads = [thread.name for thread in threading.enumerate()]
    left = [str(path) for path in folder.glob("agent_tools-*/*")]
    return len(os.listdir("/proc/self/fd")), threads, left


def attacked(tool: CodeInterpreter, timeout: float = LONG_ENOUGH) -> Execution:
    """The run that is answered with hostility, within its time and memory, and fit to be shown."""
    assert tool.run("first").outputs == (Stream("stdout", "run 1\n"),)
    before, started = resident(), time.monotonic()
    execution = tool.run(ATTACK, timeout=timeout)
    assert time.monotonic() - started < timeout + PATIENCE
    assert resident("VmHWM") - before < GROWTH
    assert_is_safe(markdown(execution, dict(zip(execution.images, execution.figures))))
    return execution


def resident(field: str = "VmRSS") -> int:
    """Bytes in memory now; or, with VmHWM, the most since the last time that now was asked for."""
    if field == "VmRSS":
        Path("/proc/self/clear_refs").write_text("5")
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def assert_is_safe(shown: str) -> None:
    """It can be encoded, holds nothing that a terminal obeys, and all the guest said stays inside a fence."""
    shown.encode("utf-8")
    assert not CONTROLS.search(shown)
    for line in outside_of_fences(shown):
        assert line in ("", NOTHING, *HEADINGS) or re.fullmatch(r"!\[fig-\d{3}\]\(/tmp/at-[\w/.-]+\)", line), line


def outside_of_fences(shown: str) -> Iterator[str]:
    """The lines of a Markdown text that are in no code fence (CommonMark 0.31, 4.5)."""
    opened = ""
    for line in shown.split("\n"):
        ticks = re.match(r" {0,3}(`{3,})([^`]*)$", line)
        if not opened and ticks:
            opened = ticks[1]
        elif opened and ticks and len(ticks[1]) >= len(opened) and not ticks[2].strip():
            opened = ""
        elif not opened:
            yield line
    assert not opened


def assert_goes_on(tool: CodeInterpreter, lost: str) -> None:
    """The next run works: in the same kernel, or in a fresh one, and then it says so."""
    outputs = tool.run("next").outputs
    if lost:
        assert outputs == (Restarted(lost), Stream("stdout", "run 1\n"))
    else:
        assert outputs == (Stream("stdout", "run 3\n"),)


@dataclass(frozen=True)
class Row:
    """What the kernel does, the outputs of that run, and why its variables were lost ('' if they were not)."""

    does: Script
    shows: tuple[Output, ...] = ()
    lost: str = ""
    timeout: float = LONG_ENOUGH


def rows(table: dict[str, Row]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", table.values(), ids=table.keys())


def check(new_tool: NewTool, row: Row) -> None:
    tool = new_tool(FakeEngine(row.does))
    assert attacked(tool, row.timeout).outputs == row.shows
    assert_goes_on(tool, row.lost)


def in_turn(*steps: Script) -> Script:
    """A script of several steps."""

    def run(turn: Turn) -> None:
        for step in steps:
            step(turn)

    return run


def says(kind: str, content: object, **parts: Any) -> Script:
    return lambda turn: turn.publish(kind, content, **parts)


def prints(text: object, **parts: Any) -> Script:
    return says("stream", {"name": "stdout", "text": text}, **parts)


def shows(data: object, kind: str = "display_data", **content: Any) -> Script:
    return says(kind, {"data": data, **content})


def finishes(turn: Turn) -> None:
    turn.finish()


def replies(turn: Turn) -> None:
    turn.reply()


def idles(turn: Turn) -> None:
    turn.idle()


def does_nothing(turn: Turn) -> None:
    """Not even reply."""


def pauses(turn: Turn) -> None:
    """Long enough for what was sent to be taken, and the run to be over."""
    turn.kernel.ended.wait(0.3)


A = Stream("stdout", "a")
B = Stream("stdout", "b")
AB = Stream("stdout", "ab")
STUBBORN = "its code did not stop at the time limit"
LOST = TimedOut(0.2, state_kept=False)


# -- lies about the end -----------------------------------------------------------------------------------------------


def keeps_printing(turn: Turn) -> None:
    """From a thread that outlives the run, as code may leave one behind."""

    def print_on() -> None:
        with contextlib.suppress(OSError):
            turn.flood("stream", (b'{"text": "late %d"}' % number for number in itertools.count()))

    turn.finish()
    threading.Thread(target=print_on).start()


def obeys_the_interrupt(turn: Turn) -> None:
    turn.kernel.interrupted.wait(LONG_ENOUGH)
    turn.reply({"status": "error", "ename": "KeyboardInterrupt", "evalue": "", "traceback": ["line 1"]})
    turn.idle()


def flips_its_status(turn: Turn) -> None:
    turn.flood("status", (b'{"execution_state": "%s", "n": %d}' % ((b"busy", b"idle")[n % 2], n) for n in range(5000)))


def is_busy_for_ever(turn: Turn) -> None:
    turn.flood("status", (b'{"execution_state": "idle", "n": %d}' % n for n in itertools.count()))


ENDS = {
    "idle before the outputs and the reply": Row(in_turn(idles, prints("a"), replies), (A,)),
    "the reply before the outputs": Row(in_turn(replies, prints("a"), idles), (A,)),
    "a forged end, and the code runs on": Row(in_turn(prints("a"), finishes, pauses, prints("late")), (A,)),
    "output without end after the end": Row(keeps_printing),
    "a reply and never idle": Row(in_turn(prints("a"), replies), (A,)),
    "idle and never a reply": Row(in_turn(prints("a"), idles), (A, LOST), STUBBORN, 0.2),
    "nothing at all": Row(does_nothing, (LOST,), STUBBORN, 0.2),
    "idle without end and never a reply": Row(is_busy_for_ever, (LOST,), STUBBORN, 0.2),
    "thousands of states": Row(in_turn(flips_its_status, prints("a"), finishes), (A,)),
    "thousands of replies": Row(in_turn(prints("a"), *[replies] * 2000, idles), (A,)),
    "two ends": Row(in_turn(finishes, finishes)),
    "an interrupt that is obeyed": Row(obeys_the_interrupt, (TimedOut(0.2, state_kept=True, where="line 1"),), "", 0.2),
    "a reply of another kind": Row(lambda t: t.shell.send(t.pack("inspect_reply", {})), (LOST,), STUBBORN, 0.2),
    "the reply on the wrong channel": Row(says("execute_reply", {"status": "ok"}), (LOST,), STUBBORN, 0.2),
    "idle on the wrong channel": Row(
        lambda t: (t.shell.send(t.pack("status", {"execution_state": "idle"})), t.reply(), None)[-1]
    ),
    "a reply to another request": Row(lambda t: t.reply(parent={"msg_id": "other"}), (LOST,), STUBBORN, 0.2),
    "a status that is no word": Row(in_turn(replies, says("status", {"execution_state": ["idle"]}))),
}


@rows(ENDS)
def test_a_lie_about_the_end_hurts_its_own_run_only(new_tool: NewTool, row: Row) -> None:
    check(new_tool, row)


PARENTS = [None, {}, [], "text", 5, {"msg_id": None}, {"msg_id": ["x"]}, {"msg_id": "other"}, {"id": "x"}]


@pytest.mark.parametrize("parent", PARENTS, ids=repr)
def test_output_of_no_request_or_another_is_not_shown(new_tool: NewTool, parent: object) -> None:
    lies = (prints("no", parent=parent), says("error", {"ename": "no"}, parent=parent), shows({}, parent=parent))
    check(new_tool, Row(in_turn(prints("a"), *lies[:2], prints("b"), finishes), (AB,)))


def test_output_of_an_earlier_run_is_not_shown_in_a_later(new_tool: NewTool) -> None:
    earlier: list[dict[str, Any]] = []

    def remember(turn: Turn) -> None:
        for request in earlier:
            turn.publish("stream", {"text": "late"}, parent=request)
        earlier.append(turn.request)
        turn.publish("stream", {"text": f"{len(earlier)}"})
        turn.finish()

    tool = new_tool(FakeEngine(remember))
    assert [tool.run(ATTACK).stdout for _ in range(3)] == ["1", "2", "3"]


# -- broken messages --------------------------------------------------------------------------------------------------

BAD_JSON = {
    "nothing": b"",
    "no JSON": b"{",
    "invalid UTF-8": b'{"a": "\xff\xfe"',
    "NUL": b"\0",
    "200,000 levels": b'{"a": ' + b"[" * 200_000,
    "10,000 digits": b'{"a": ' + b"9" * 10_000 + b"}",
}
NO_OBJECT = {"null": b"null", "list": b"[]", "text": b'"x"', "number": b"5", "NaN": b"NaN"}
HEADERS = {
    "empty": b"{}",
    "msg_type is a number": {"msg_type": 5},
    "msg_type is null": {"msg_type": None},
    "version is a number": {"version": 5},
    "month 13": {"date": "2024-13-01T00:00:00Z"},
    "too long": {"username": "x" * 100_000},
}


def with_part(name: str, part: object) -> Callable[[Turn], list[bytes]]:
    if name == "content":
        return lambda turn: turn.pack("stream", part)
    return lambda turn: turn.pack("stream", {"text": "a"}, **{name: part})


def with_signature(signature: bytes) -> Callable[[Turn], list[bytes]]:
    def pack(turn: Turn) -> list[bytes]:
        delimiter, _, *parts = turn.pack("stream", {"text": "a"})
        return [delimiter, signature, *parts]

    return pack


MALFORMED: dict[str, Callable[[Turn], list[bytes]]] = {
    **{
        f"{part}: {name}": with_part(part, bad)
        for part, (name, bad) in itertools.product(("header", "parent", "metadata", "content"), BAD_JSON.items())
        if not (part != "content" and name == "200,000 levels")
    },
    **{f"content: {name}": with_part("content", bad) for name, bad in NO_OBJECT.items()},
    **{f"header: {name}": with_part("header", bad) for name, bad in {**NO_OBJECT, **HEADERS}.items()},
    "no signature": with_signature(b""),
    "another signature": with_signature(b"0" * 64),
    "a signature that is no text": with_signature(b"\xff" * 64),
    "no delimiter": lambda turn: turn.pack("stream", {"text": "a"})[1:],
    "a delimiter alone": lambda turn: [DELIMITER],
    "too few parts": lambda turn: turn.pack("stream", {"text": "a"})[:5],
    "one empty part": lambda turn: [b""],
    "64 empty parts": lambda turn: [b""] * 64,
}


@pytest.mark.parametrize("channel", ["iopub", "shell"])
@pytest.mark.parametrize("pack", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_message_ends_the_kernel(
    new_tool: NewTool, pack: Callable[[Turn], list[bytes]], channel: str
) -> None:
    tool = new_tool(FakeEngine(lambda turn: getattr(turn, channel).send(pack(turn))))
    (died,) = attacked(tool).outputs
    assert isinstance(died, Died)
    assert re.match(r"it sent a (malformed message|message without a type|header that is too long)", died.reason)
    assert_goes_on(tool, died.reason)


def test_a_signature_that_was_used_before_ends_the_kernel(new_tool: NewTool) -> None:
    def attack(turn: Turn) -> None:
        message = [b"topic", *turn.pack("stream", {"text": "a"})]
        turn.iopub.send(message)
        turn.iopub.send(message)

    reason = "it sent a malformed message (ValueError)"
    check(new_tool, Row(attack, (A, Died(reason)), reason))


# -- bytes that are no messages ---------------------------------------------------------------------------------------

OVER = "it sent a message over 16,777,216 bytes"
NOISE = {
    "HTTP": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it sent bytes that are not ZeroMQ's protocol"),
    "ones": (b"\xff" * 1000, "it sent bytes that are not ZeroMQ's protocol"),
    "a second greeting": (GREETING, "it sent bytes that are not ZeroMQ's protocol"),
    "a frame of 2**64 - 1 bytes": (bytes((LONG,)) + b"\xff" * 8, OVER),
    "a frame of 300 MiB": (bytes((LONG,)) + struct.pack(">Q", 300 * MIB), OVER),
    "a command of 300 MiB": (bytes((LONG | COMMAND,)) + struct.pack(">Q", 300 * MIB), OVER),
    "10,000 parts": (frame(b"", MORE) * 10_000, f"{OVER} or 64 parts"),
    "parts that are together too long": (frame(bytes(9 * MIB), MORE) * 2, f"{OVER} or 64 parts"),
}


@pytest.mark.parametrize("channel", ["iopub", "shell"])
@pytest.mark.parametrize(("noise", "reason"), NOISE.values(), ids=NOISE.keys())
def test_what_is_no_message_ends_the_kernel(new_tool: NewTool, noise: bytes, reason: str, channel: str) -> None:
    def attack(turn: Turn) -> None:
        getattr(turn, channel).send_bytes(noise)

    check(new_tool, Row(attack, (Died(reason),), reason))


def sends_in_pieces_for_ever(turn: Turn) -> None:
    turn.iopub.send_bytes(bytes((LONG,)) + struct.pack(">Q", 16 * MIB))
    for _ in range(100):
        turn.iopub.send_bytes(b"x")
        turn.kernel.ended.wait(0.01)


def hangs_up_in_mid_message(turn: Turn) -> None:
    turn.iopub.send_bytes(frame(b"a", MORE) + frame(b"x" * 1000)[:100])
    turn.iopub.hang_up()


def hangs_up(turn: Turn) -> None:
    turn.shell.hang_up()


HUNG_UP = "it closed its channels"
HALVES = {
    "half a frame, then silence": Row(lambda t: t.iopub.send_bytes(frame(b"x" * 1000)[:99]), (LOST,), STUBBORN, 0.2),
    "half a header, then silence": Row(lambda t: t.shell.send_bytes(b"\2\0\0"), (LOST,), STUBBORN, 0.2),
    "a byte at a time": Row(sends_in_pieces_for_ever, (LOST,), STUBBORN, 0.2),
    "a hang-up in mid-message": Row(hangs_up_in_mid_message, (Died(HUNG_UP),), HUNG_UP),
    "a hang-up": Row(hangs_up, (Died(HUNG_UP),), HUNG_UP),
    "a hang-up after an output": Row(in_turn(prints("a"), hangs_up), (A, Died(HUNG_UP)), HUNG_UP),
}


@rows(HALVES)
def test_half_a_message_is_not_waited_for(new_tool: NewTool, row: Row) -> None:
    check(new_tool, row)


def test_a_kernel_that_stops_reading_is_not_waited_for(new_tool: NewTool) -> None:
    tool = new_tool(FakeEngine(in_turn(finishes, lambda turn: turn.kernel.ended.wait(LONG_ENOUGH) and None)))
    assert attacked(tool).outputs == ()
    started = time.monotonic()
    assert tool.run("#" * 900_000).outputs == (Died(HUNG_UP),)
    assert time.monotonic() - started < PATIENCE
    assert tool.run("next").outputs == (Restarted(HUNG_UP), Stream("stdout", "run 1\n"))


# -- wrong types in every field ---------------------------------------------------------------------------------------

ODD: list[Any] = [None, 5, 1.5, True, [], [5, None], {}, {"a": 1}, float("nan"), float("-inf")]


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_wrong_types_in_every_field_show_as_nothing(new_tool: NewTool, odd: Any) -> None:
    attack = in_turn(
        says("stream", {"name": odd, "text": odd}),
        says("execute_result", {"data": odd, "metadata": odd, "execution_count": odd}),
        says("display_data", {"data": odd, "transient": odd}),
        says("display_data", {"data": {"text/plain": odd}, "transient": {"display_id": odd}}),
        says("update_display_data", {"data": {"image/png": odd}}),
        says("clear_output", {"wait": "yes"}) if odd is True else says("unknown", odd if isinstance(odd, dict) else {}),
        says("error", {"ename": odd, "evalue": odd, "traceback": "text"}),
        says("status", {"execution_state": odd}),
        lambda turn: turn.reply({"status": odd, "payload": odd}),
        idles,
    )
    shown = () if odd is True else (Result({}), Display({}), Display({"text/plain": ""}), Display({}, is_update=True))
    note = Omitted("a picture (not base64 text)")  # which outlives a clearing
    check(new_tool, Row(attack, (*shown, note, Error("Error", "", ""))))


def lines(count: int) -> bytes:
    return b'{"ename": "E", "traceback": [' + b",".join([b'"x"'] * count) + b"]}"


FIELDS = {
    "a path for a name": Row(in_turn(says("stream", {"name": "../x", "text": "a"}), finishes), (A,)),
    "text in a list": Row(in_turn(prints(["a", 5, "b"]), finishes), (AB,)),
    "a traceback of text": Row(
        in_turn(says("error", {"ename": "E", "evalue": "v", "traceback": "x"}), finishes), (Error("E", "v", ""),)
    ),
    "a traceback of 100,000 lines": Row(
        in_turn(says("error", lines(100_000)), finishes), (Error("E", "", "\n".join("x" * 2000)),)
    ),
    "a traceback of 1,000,000 lines": Row(in_turn(says("error", lines(10**6)), finishes), (Error("Error", "", ""),)),
    "a name of 100,000 characters": Row(
        in_turn(says("error", {"ename": "E" * 100_000}), finishes),
        (Error(f"{'E' * 100}\n[... 99,800 characters left out ...]\n{'E' * 100}", "", ""),),
    ),
    "an error that is taken back": Row(
        in_turn(says("error", {"ename": "E"}), says("error", {"ename": "F"}), finishes), (Error("F", "", ""),)
    ),
    "MIME types that are none": Row(
        in_turn(shows({"": "a", "x": "a", "../x": "a", "text/\n": "a", "a/b c": "a"}), finishes), (Display({}),)
    ),
    "a thousand MIME types": Row(
        in_turn(shows({f"text/x{n}": "a" for n in range(1000)}), finishes),
        (Display({f"text/x{n}": "a" for n in range(16)}),),
    ),
    "lone surrogates": Row(in_turn(prints("\ud800a\udfff"), finishes), (Stream("stdout", "?a?"),)),
    "a deep JSON value": Row(
        in_turn(shows({"application/json": json.loads("[" * 90 + "]" * 90)}), finishes),
        (Display({}), Omitted("application/json of more than 64 levels")),
    ),
    "NaN in a JSON value": Row(
        in_turn(says("display_data", b'{"data": {"application/json": [Infinity]}}'), finishes),
        (Display({"application/json": [float("inf")]}),),
    ),
}


@rows(FIELDS)
def test_odd_content_is_read_for_what_can_be_kept(new_tool: NewTool, row: Row) -> None:
    check(new_tool, row)


PAYLOADS = [
    [{"source": "set_next_input", "text": "import os"}],
    [{"source": "page", "data": {"text/plain": "\x1b[2J"}}],
    [{"source": "ask_exit", "keepkernel": False}],
    [{"source": "edit_magic", "filename": "/etc/passwd"}, {"source": "x" * 1000}, 5, None],
]


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: payload[0]["source"])
def test_payloads_are_ignored(new_tool: NewTool, payload: object) -> None:
    check(new_tool, Row(in_turn(lambda turn: turn.reply({"status": "ok", "payload": payload}), idles)))


def asks_for_input(turn: Turn) -> None:
    content = {"prompt": "password: ", "password": True}
    turn.publish("input_request", content)
    turn.shell.send(turn.pack("input_request", content))


def opens_comms(turn: Turn) -> None:
    turn.flood("comm_open", (b'{"comm_id": "%d", "target_name": "x", "data": {}}' % n for n in range(2000)))


UNASKED = {
    "a request for input": asks_for_input,
    "2,000 comms": opens_comms,
    "a reply to nothing": lambda turn: turn.shell.send(turn.pack("shutdown_reply", {"restart": True}, parent={})),
    "an unknown type": says("\x1b]0;title\x07", {"text": "no"}),
    "an echo of the request": says("execute_input", {"code": "no"}),
}


@pytest.mark.parametrize("unasked", UNASKED.values(), ids=UNASKED.keys())
def test_what_was_not_asked_for_is_ignored(new_tool: NewTool, unasked: Script) -> None:
    check(new_tool, Row(in_turn(prints("a"), unasked, prints("b"), finishes), (AB,)))


# -- floods -----------------------------------------------------------------------------------------------------------


def prints_200_000_times(turn: Turn) -> None:
    turn.flood("stream", (b'{"text": "%6d|"}' % number for number in range(200_000)))


def prints_for_ever(turn: Turn) -> None:
    turn.flood("stream", (b'{"text": "%6d|"}' % number for number in itertools.count()))


def prints_much_for_ever(turn: Turn) -> None:
    turn.flood("stream", (b'{"text": "%6d|%s"}' % (number, b"x" * 100_000) for number in itertools.count()))


def draws_for_ever(turn: Turn) -> None:
    size = 100_000
    turn.flood("display_data", (b'{"data": {"text/html": "%d%s"}}' % (n, b"x" * size) for n in itertools.count()))


@pytest.mark.parametrize("flood", [prints_200_000_times, prints_for_ever, prints_much_for_ever, draws_for_ever])
def test_a_flood_is_cut_off_at_the_time_limit(new_tool: NewTool, flood: Script) -> None:
    tool = new_tool(FakeEngine(flood))
    outputs = attacked(tool, timeout=1.0).outputs
    assert outputs[-1] == TimedOut(1.0, state_kept=False) or Omitted in map(type, outputs[-1:])
    assert TimedOut(1.0, state_kept=False) in outputs
    assert len(outputs) <= 210
    assert sum(len(output.text) for output in outputs if isinstance(output, Stream)) <= 40_000
    assert_goes_on(tool, STUBBORN)


def test_closing_a_stream_of_a_flood_ends_it(new_tool: NewTool) -> None:
    tool = new_tool(FakeEngine(prints_for_ever))
    stream = tool.stream(ATTACK, timeout=LONG_ENOUGH)
    assert next(stream) == Stream("stdout", "     0|")
    started = time.monotonic()
    stream.close()
    assert time.monotonic() - started < PATIENCE
    lost = "its code did not stop when it was interrupted"
    assert tool.run("next").outputs == (Restarted(lost), Stream("stdout", "run 1\n"))


def displays(kind: str, count: int) -> Script:
    contents = (b'{"data": {"text/plain": "%d"}, "transient": {"display_id": "i"}}' % n for n in range(count))
    return lambda turn: turn.flood(kind, contents)


def clears(turn: Turn) -> None:
    turn.flood("clear_output", (b'{"wait": false, "n": %d}' % number for number in range(2000)))


def texts(count: int, size: int) -> Script:
    return lambda turn: turn.publish("stream", b'{"text": "' + b"x" * size * count + b'"}')


WIDE = b'{"text": "' + b"x" * (15 * MIB) + "\U0001f600".encode() + b'"}'
LISTS = b'{"data": {"application/json": [' + b"[]," * 10**6 + b"1]}}"
COSTLY = "that would be costly to read"
COUNTED = {
    "displays": Row(
        in_turn(displays("display_data", 1000), finishes),
        (*(Display({"text/plain": str(n)}, "i") for n in range(200)), Omitted("800 displayed values")),
    ),
    "updates of a display": Row(
        in_turn(
            shows({"text/plain": "-"}, transient={"display_id": "i"}), displays("update_display_data", 3000), finishes
        ),
        (Display({"text/plain": "1999"}, "i"), Omitted("1,000 displayed values")),
    ),
    "clearings": Row(in_turn(prints("no"), clears, prints("a"), finishes), (A,)),
    "15 MiB of text at once": Row(
        in_turn(texts(15, MIB), finishes),
        (Stream("stdout", "x" * 20_000), Omitted(f"{15 * MIB - 40_000:,} characters"), Stream("stdout", "x" * 20_000)),
    ),
    "a wide character in 15 MiB of text": Row(
        in_turn(says("stream", WIDE), prints("a"), finishes), (Omitted(f"a message of {len(WIDE):,} bytes {COSTLY}"), A)
    ),
    "a million empty lists": Row(
        in_turn(says("display_data", LISTS), finishes), (Omitted(f"a message of {len(LISTS):,} bytes {COSTLY}"),)
    ),
}


@rows(COUNTED)
def test_what_is_too_much_is_left_out_and_counted(new_tool: NewTool, row: Row) -> None:
    check(new_tool, row)


# -- pictures ---------------------------------------------------------------------------------------------------------


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int = 1, height: int = 1, *more: bytes) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n" + header + b"".join(more) + chunk(b"IDAT", zlib.compress(bytes(4))) + chunk(b"IEND", b"")
    )


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


KEPT = {
    "small": png(),
    "APNG": png(1, 1, chunk(b"acTL", struct.pack(">II", 10**6, 0))),
    "a bomb of text": png(1, 1, chunk(b"zTXt", b"x\0\0" + zlib.compress(bytes(10 * MIB)))),
    "cut short after its header": png()[:40],
    "as many pixels as may be": png(5000, 5000),
}


@pytest.mark.parametrize("data", KEPT.values(), ids=KEPT.keys())
def test_a_picture_is_written_as_it_is_and_never_decoded(new_tool: NewTool, data: bytes) -> None:
    tool = new_tool(FakeEngine(in_turn(shows({"image/png": encoded(data), "text/plain": "<Figure>"}), finishes)))
    execution = attacked(tool)
    assert execution.outputs == (Display({"image/png": data, "text/plain": "<Figure>"}),)
    assert [Path(path).read_bytes() for path in execution.figures] == [data]
    assert_goes_on(tool, "")


REFUSED = {
    "no base64": ("image/png", "*" * 100, "not base64 text"),
    "no ASCII": ("image/png", "é中" + encoded(png()), "not base64 text"),
    "base64 cut short": ("image/png", encoded(png())[:-3], "not base64 text"),
    "HTML": ("image/png", encoded(b"<script>alert(1)</script>"), "not image/png"),
    "a GIF": ("image/png", encoded(b"GIF89a" + bytes(100)), "not image/png"),
    "a PNG as JPEG": ("image/jpeg", encoded(png()), "not image/jpeg"),
    "a JPEG without a frame": ("image/jpeg", encoded(b"\xff\xd8\xff\xe0\0\2" * 100), "not image/jpeg"),
    "a PNG cut short": ("image/png", encoded(png()[:30]), "not image/png"),
    "no size": ("image/png", encoded(png(0, 0)), "not image/png"),
    "60,000 x 60,000": ("image/png", encoded(png(60_000, 60_000)), "60000 x 60000 pixels, more than 25,000,000"),
    "12 MiB": ("image/png", encoded(png() + bytes(11 * MIB)), "larger than 10,485,760 bytes"),
    "white space": ("image/png", "ab " * (5 * MIB), "not image/png"),
}


@pytest.mark.parametrize(("mime", "text", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_picture_is_left_out_with_its_reason(new_tool: NewTool, mime: str, text: str, reason: str) -> None:
    attack = in_turn(shows({mime: text, "text/plain": "<Figure>"}), finishes)
    check(new_tool, Row(attack, (Display({"text/plain": "<Figure>"}), Omitted(f"a picture ({reason})"))))


def test_a_picture_of_100_mib_ends_the_kernel(new_tool: NewTool) -> None:
    def attack(turn: Turn) -> None:
        turn.iopub.send_bytes(frame(b"topic", MORE) + bytes((LONG,)) + struct.pack(">Q", 133 * MIB))
        for _ in range(133):
            turn.iopub.send_bytes(b"A" * MIB)

    check(new_tool, Row(attack, (Died(OVER),), OVER))


def test_pictures_are_counted(new_tool: NewTool) -> None:
    content = b'{"data": {"image/png": "%s"}, "n": %%d}' % encoded(png()).encode()
    flood = in_turn(lambda turn: turn.flood("display_data", (content % n for n in range(1000))), finishes)
    shown = (Display({"image/png": png()}),) * 20
    check(new_tool, Row(flood, (*shown, Omitted("980 pictures after the first 20"))))


# -- text -------------------------------------------------------------------------------------------------------------

EVIL = "<img src=x onerror=alert(1)><script>alert(1)</script>"


@pytest.mark.parametrize(
    "mime", ["text/html", "application/javascript", "image/svg+xml", "text/markdown", "text/latex"]
)
def test_rich_text_is_data_and_never_markdown(new_tool: NewTool, mime: str) -> None:
    tool = new_tool(FakeEngine(in_turn(shows({mime: EVIL}), finishes)))
    execution = attacked(tool)
    assert execution.outputs == (Display({mime: EVIL}),)
    assert markdown(execution, {}) == NOTHING


NEUTRALISED = {
    "colours": ("\x1b[31mred\x1b[0m", "red"),
    "a cleared screen": ("a\x1b[2J\x1b[Hb", "ab"),
    "a link": ("\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\", "click"),
    "the clipboard": ("\x1b]52;c;cm0gLXJmIC8=\x07a", "a"),
    "an escape without an end": ("a\x1b]0;title", "a"),
    "one-byte escapes": ("\x9b31ma\x9b0m", "a"),
    "a bell and NULs": ("\x07a\x00\x00b\x7f", "ab"),
    "bidirectional marks": ("a\u202eb\u2066", "a\\u202eb\\u2066"),
    "lone surrogates": ("\ud83d a", "? a"),
    "returns": ("no\rok", "ok"),
    "backspaces": ("no\b\bok", "ok"),
    "three backticks": ("```\nstdout:\n\n![x](http://evil/?q=1)\n```", None),
    "ten backticks": ("`" * 10 + "\nerror:\n\n" + "`" * 10, None),
    "tildes": ("~~~\n</details>\n# heading\n[a](javascript:alert(1))", None),
    "another section": ("a\n```\n\nexecute_result:\n\n```\nAll tests passed", None),
}


@pytest.mark.parametrize(("text", "shown"), NEUTRALISED.values(), ids=NEUTRALISED.keys())
def test_hostile_text_is_shown_inside_one_fence_and_does_nothing(
    new_tool: NewTool, text: str, shown: str | None
) -> None:
    attack = in_turn(
        prints(text),
        says("execute_result", {"data": {"text/plain": text}}),
        shows({"text/plain": text}),
        says("error", {"ename": "E", "traceback": [text]}),
        finishes,
    )
    tool = new_tool(FakeEngine(attack))
    execution = attacked(tool)
    assert [type(output) for output in execution.outputs] == [Stream, Result, Display, Error]
    answer = markdown(execution, {})
    assert [line for line in outside_of_fences(answer) if line] == [
        "stdout:",
        "execute_result:",
        "display_data:",
        "error:",
    ]
    for heading in ("stdout", "execute_result", "display_data", "error"):
        assert f"{heading}:\n\n{fence(text if shown is None else shown)}" in answer
    assert_goes_on(tool, "")


def test_lines_of_returns_are_folded_in_time(new_tool: NewTool) -> None:
    def attack(turn: Turn) -> None:
        for number in range(20):
            turn.publish("display_data", {"data": {"text/plain": "x" * 20_000 + "\r" * 19_000 + f"{number}|"}})
        turn.finish()

    tool, started = new_tool(FakeEngine(attack)), time.monotonic()
    answer = tool.call(ATTACK, timeout=1.0)
    assert time.monotonic() - started < 1.0 + PATIENCE
    assert answer.startswith("display_data:\n\n```\n0|" + "x" * 19_998 + "\n```\n\ndisplay_data:")


# -- starts -----------------------------------------------------------------------------------------------------------


def opens_with(*pieces: bytes) -> Opening:
    def opening(kernel: FakeKernel) -> None:
        for piece in pieces:
            kernel.shell.send_bytes(piece)
            kernel.iopub.send_bytes(piece)
        kernel.ended.wait(LONG_ENOUGH)

    return opening


def hangs_up_at_once(kernel: FakeKernel) -> None:
    kernel.shell.hang_up()
    kernel.iopub.hang_up()


def says_no_welcome(kernel: FakeKernel) -> None:
    kernel.shell.greet(b"ROUTER")
    kernel.iopub.greet(b"XPUB")
    kernel.ended.wait(LONG_ENOUGH)


def welcomes_with(noise: bytes) -> Opening:
    def opening(kernel: FakeKernel) -> None:
        kernel.shell.greet(b"ROUTER")
        kernel.iopub.greet(b"XPUB")
        kernel.iopub.send_bytes(noise)
        kernel.ended.wait(LONG_ENOUGH)

    return opening


def floods_the_shell(kernel: FakeKernel) -> None:
    kernel.shell.greet(b"ROUTER")
    kernel.iopub.greet(b"XPUB")
    while True:
        kernel.shell.send(kernel.pack("kernel_info_reply", {}, parent={}))


def fails(kernel: FakeKernel) -> None:
    kernel.init.say(b"failed 1 \x1b[31mTraceback")
    kernel.ended.wait(LONG_ENOUGH)


def talks_for_ever(kernel: FakeKernel) -> None:
    while not kernel.ended.is_set():
        kernel.init.say(b"hello")


OPENINGS: dict[str, Opening] = {
    "silence": opens_with(),
    "HTTP": opens_with(b"HTTP/1.1 400 Bad Request\r\n".ljust(64)),
    "half a greeting": opens_with(GREETING[:30]),
    "a greeting and noise": opens_with(GREETING, b"\xff" * 100),
    "a hang-up": hangs_up_at_once,
    "no welcome": says_no_welcome,
    "noise for a welcome": welcomes_with(b"\xff" * 100),
    "a malformed welcome": welcomes_with(frame(b"welcome")),
    "a flood on the shell channel": floods_the_shell,
    "an endless talk of PID 1": talks_for_ever,
}


@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS.keys())
def test_a_kernel_that_never_gets_ready_is_an_error_in_time(new_tool: NewTool, opening: Opening) -> None:
    tool = new_tool(FakeEngine(finishes, [opening]))
    started = time.monotonic()
    with pytest.raises(ToolServiceError) as caught:
        tool.run("first")
    assert time.monotonic() - started < LIMITS["start_timeout"] + PATIENCE
    assert caught.value.code == "KernelDied"
    assert tool.run("again").outputs == (Stream("stdout", "run 1\n"),)


@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS.keys())
def test_a_second_kernel_that_never_gets_ready_costs_its_sandbox(new_tool: NewTool, opening: Opening) -> None:
    engine = FakeEngine(hangs_up, [open_honestly, opening])
    tool = new_tool(engine)
    assert attacked(tool).outputs == (Died(HUNG_UP),)
    assert_goes_on(tool, HUNG_UP)
    assert engine.started == 2


def test_the_words_of_a_failed_start_are_neutralised(new_tool: NewTool) -> None:
    tool = new_tool(FakeEngine(finishes, [fails]))
    with pytest.raises(ToolServiceError, match="it failed to start: Traceback"):
        tool.run("first")


# -- PID 1 ------------------------------------------------------------------------------------------------------------


def words(*datagrams: bytes) -> Script:
    def say(turn: Turn) -> None:
        for datagram in datagrams:
            turn.kernel.init.say(datagram)

    return say


def goes_deaf(turn: Turn) -> None:
    turn.kernel.init.is_deaf = True


def talks_on(turn: Turn) -> None:
    while not turn.kernel.ended.is_set():
        turn.kernel.init.say(b"hello")


GONE = "the sandbox ended"
WORDS = {
    "a forged exit": Row(
        words(b"exit 1 code 7"), (Died("its process exited with code 7"),), "its process exited with code 7"
    ),
    "an exit of no kind": Row(
        words(b"exit 1 \x1b[31m"), (Died("its process exited with code ?"),), "its process exited with code ?"
    ),
    "an exit by no signal": Row(
        words(b"exit 1 signal " + b"9" * 4000),
        (Died(f"it was killed by signal {'9' * 4000}"),),
        f"it was killed by signal {'9' * 4000}",
    ),
    "words that are none": Row(in_turn(words(b"\xff" * 4096, b"exit", b"a b c d e"), prints("a"), finishes), (A,)),
    "a blank word": Row(words(b" "), (Died(GONE),), GONE),
    "a hang-up": Row(lambda turn: turn.kernel.init.hang_up(), (Died(GONE),), GONE),
    "an endless talk": Row(talks_on, (LOST,), STUBBORN, 0.2),
    "no ear for orders": Row(goes_deaf, (LOST,), STUBBORN, 0.2),
    "no ear for orders, and a broken message": Row(
        in_turn(goes_deaf, lambda turn: turn.iopub.send_bytes(b"\xff" * 9)), (Died(NOISE["ones"][1]),), NOISE["ones"][1]
    ),
}


@rows(WORDS)
def test_a_pid_1_that_lies_or_goes_deaf_ends_with_its_sandbox(new_tool: NewTool, row: Row) -> None:
    check(new_tool, row)
