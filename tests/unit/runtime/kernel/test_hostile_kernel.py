"""A real tool against kernels that do what no kernel should: what comes of it, and of the next run."""

from __future__ import annotations

import itertools
import re
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent_tools.errors import ToolServiceError
from agent_tools.execution import Died, Restarted, Stream, TimedOut
from agent_tools.settings import MIB
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
from tests.under_attack import (
    AB,
    LIMITS,
    LONG_ENOUGH,
    LOST,
    PATIENCE,
    STUBBORN,
    A,
    NewTool,
    Row,
    assert_goes_on,
    attacked,
    awaits_the_next_run,
    check,
    does_nothing,
    finishes,
    idles,
    in_turn,
    prints,
    replies,
    rows,
    says,
    shows,
    tools_to_attack,
)


@pytest.fixture
def new_tool() -> Iterator[NewTool]:
    with tools_to_attack() as make:
        yield make


# -- lies about the end -----------------------------------------------------------------------------------------------


def keeps_printing(turn: Turn) -> None:
    """From a thread that outlives the run, as code may leave one behind."""

    turn.finish()
    contents = (b'{"text": "late %d"}' % number for number in itertools.count())
    turn.kernel.spawn(lambda: turn.flood("stream", contents))


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
    "a forged end, and the code runs on": Row(
        in_turn(prints("a"), finishes, awaits_the_next_run, prints("late")), (A,)
    ),
    "a reply and never idle": Row(in_turn(prints("a"), replies), (A,)),
    "idle and never a reply": Row(in_turn(prints("a"), idles), (A, TimedOut(1.0, state_kept=False)), STUBBORN, 1.0),
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


def test_output_without_end_after_the_end_is_not_shown_by_the_next_run(new_tool: NewTool) -> None:
    tool = new_tool(FakeEngine(keeps_printing))
    assert re.fullmatch(r"(late \d+)*", attacked(tool).stdout)  # what came together with the end may be shown
    assert_goes_on(tool, "")


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
