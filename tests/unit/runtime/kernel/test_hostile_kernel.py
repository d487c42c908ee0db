"""A real tool against kernels that do what no kernel should: what comes of it, and of the next run."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent_tools.errors import ToolServiceError
from agent_tools.guest.wire.framing import pack
from agent_tools.guest.wire.words import Failed, write
from agent_tools.limits import MIB, Limits
from agent_tools.results.execution import Died, Error, Notice, Omitted, Restarted, Stream, TimedOut
from agent_tools.runtime.kernel import channel as channel_module
from tests.fake_kernel import (
    ATTACK,
    CHANNELS,
    CONTROL,
    IOPUB,
    SHELL,
    STDIN,
    FakeEngine,
    FakeKernel,
    Opening,
    Script,
    Turn,
    message,
    open_honestly,
    sizes,
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
    background,
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


INTERRUPTED = {"status": "error", "ename": "KeyboardInterrupt", "evalue": "", "traceback": ["line 1"]}
REPLY = {"status": "ok", "execution_count": 1}
STREAM = {"name": "stdout", "text": "no"}
ERROR = {"ename": "no", "evalue": "", "traceback": []}


def obeys_the_interrupt(turn: Turn) -> None:
    turn.kernel.interrupted.wait(LONG_ENOUGH)
    turn.reply(INTERRUPTED)
    turn.idle()


def ends_after_the_interrupt_but_before_its_time(turn: Turn) -> None:
    turn.reply(INTERRUPTED)


def says_on(channel: int, kind: str, content: object) -> Script:
    return lambda turn: turn.say(channel, kind, content)


def flips_its_status(turn: Turn) -> None:
    turn.flood("status", (b'{"execution_state": "%s", "n": %d}' % ((b"busy", b"idle")[n % 2], n) for n in range(5000)))


def is_busy_for_ever(turn: Turn) -> None:
    turn.flood("status", (b'{"execution_state": "idle", "n": %d}' % n for n in itertools.count()))


ENDS = {
    "idle before the outputs and the reply": Row(in_turn(idles, prints("a"), replies), (A,)),
    "the reply before the outputs": Row(in_turn(replies, prints("a"), idles), late="a"),
    "the reply between the outputs": Row(in_turn(prints("a"), replies, prints("b"), idles), (A,), late="b"),
    "the reply, and an error after it": Row(in_turn(prints("a"), replies, says("error", ERROR)), (A,), late="no: \n"),
    "the reply, and a display after it": Row(
        in_turn(prints("a"), replies, shows({})), (A,), late="\n[... a display of background code left out ...]\n"
    ),
    "a forged end, and the code runs on": Row(
        in_turn(prints("a"), finishes, awaits_the_next_run, prints("late")), (A,), late="late"
    ),
    "a reply and never idle": Row(in_turn(prints("a"), replies), (A,)),
    "idle and never a reply": Row(in_turn(prints("a"), idles), (A, TimedOut(1.0, state_kept=False)), STUBBORN, 1.0),
    "nothing at all": Row(does_nothing, (LOST,), STUBBORN, 0.2),
    "idle without end and never a reply": Row(is_busy_for_ever, (LOST,), STUBBORN, 0.2),
    "thousands of states": Row(in_turn(flips_its_status, prints("a"), finishes), (A,)),
    "thousands of replies": Row(in_turn(prints("a"), *[replies] * 2000, idles), (A,)),
    "a second reply, which is an error": Row(in_turn(replies, lambda turn: turn.reply({**ERROR, "status": "error"}))),
    "two ends": Row(in_turn(finishes, finishes)),
    "an interrupt that is obeyed": Row(obeys_the_interrupt, (TimedOut(0.2, state_kept=True, where="line 1"),), "", 0.2),
    "an interrupt that nobody sent": Row(
        ends_after_the_interrupt_but_before_its_time, (Error("KeyboardInterrupt", "", "line 1"),)
    ),
    "a reply of another kind": Row(says_on(SHELL, "inspect_reply", {}), (LOST,), STUBBORN, 0.2),
    "the reply on the iopub channel": Row(says_on(IOPUB, "execute_reply", REPLY), (LOST,), STUBBORN, 0.2),
    "the reply on the control channel": Row(says_on(CONTROL, "execute_reply", REPLY), (LOST,), STUBBORN, 0.2),
    "the reply on the stdin channel": Row(says_on(STDIN, "execute_reply", REPLY), (LOST,), STUBBORN, 0.2),
    "idle on the wrong channel": Row(in_turn(says_on(SHELL, "status", {"execution_state": "idle"}), replies)),
    "outputs on the wrong channels": Row(
        in_turn(
            prints("a"),
            *(says_on(channel, "stream", STREAM) for channel in (SHELL, CONTROL, STDIN)),
            *(says_on(channel, "error", ERROR) for channel in (SHELL, CONTROL, STDIN)),
            *(says_on(channel, "display_data", {"data": {}}) for channel in (SHELL, CONTROL, STDIN)),
            prints("b"),
            finishes,
        ),
        (AB,),
    ),
    "a reply to another request": Row(lambda t: t.reply(parent={"msg_id": "other"}), (LOST,), STUBBORN, 0.2),
    "a reply that was sent for another request first": Row(
        in_turn(lambda t: t.reply(parent={"msg_id": "other"}), prints("a"), replies), (A,)
    ),
    "a status that is no word": Row(in_turn(says("status", {"execution_state": ["idle"]}), replies)),
}


@rows(ENDS)
def test_a_lie_about_the_end_hurts_its_own_run_only(new_tool: NewTool, row: Row) -> None:
    check(new_tool, row)


def test_output_without_end_after_the_end_is_a_bounded_note_of_the_next_run(new_tool: NewTool) -> None:
    is_out = threading.Event()

    def contents() -> Iterator[bytes]:
        for number in itertools.count():
            if number == 100:  # the first hundred were sent together
                is_out.set()
            yield b'{"text": "late %d"}' % number

    def keeps_printing(turn: Turn) -> None:
        """From a thread that outlives the run, as code may leave one behind."""
        turn.finish()
        turn.kernel.spawn(lambda: turn.flood("stream", contents()))

    tool = new_tool(FakeEngine(keeps_printing))
    assert attacked(tool).outputs == ()
    assert is_out.wait(LONG_ENOUGH)
    shown, note = tool.run("next").outputs
    assert shown == Stream("stdout", "run 3\n")
    assert isinstance(note, Notice)
    assert note.text.startswith(background("late 0late 1late 2").text)
    assert len(note.text) < Limits().max_text_chars + 200


PARENTS = [None, {}, [], "text", 5, {"msg_id": None}, {"msg_id": ["x"]}, {"msg_id": "other"}, {"id": "x"}]


@pytest.mark.parametrize("parent", PARENTS, ids=repr)
def test_output_of_no_request_or_another_is_only_noted(new_tool: NewTool, parent: object) -> None:
    lies = (prints("no", parent=parent), says("error", {"ename": "no"}, parent=parent), shows({}, parent=parent))
    check(new_tool, Row(in_turn(prints("a"), *lies[:2], prints("b"), finishes), (AB, background("nono: \n"))))


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
    "too long": {"username": "x" * 100_000},
}


UNREAD: dict[str, object] = {
    "version is a number": {"version": 5},
    "another version": {"version": "4.1"},
    "month 13": {"date": "2024-13-01T00:00:00Z"},
    "NaN": b'{"msg_type": "stream", "msg_id": NaN}',
    "a number of 4,000 digits": b'{"msg_type": "stream", "n": ' + b"9" * 4000 + b"}",
    "invalid UTF-8 in a text": b'{"msg_type": "stream", "session": "\xff\xfe"}',
    "another type before the last": b'{"msg_type": 5, "msg_type": "stream"}',
}


def with_part(name: str, part: object) -> Callable[[Turn], list[bytes]]:
    if name == "content":
        return lambda turn: turn.pack("stream", part)
    return lambda turn: turn.pack("stream", {"text": "a"}, **{name: part})


MALFORMED: dict[str, Callable[[Turn], list[bytes]]] = {
    **{
        f"{part}: {name}": with_part(part, bad)
        for part, (name, bad) in itertools.product(("header", "parent", "content"), BAD_JSON.items())
        if not (part != "content" and name == "200,000 levels")
    },
    **{f"content: {name}": with_part("content", bad) for name, bad in NO_OBJECT.items()},
    **{f"header: {name}": with_part("header", bad) for name, bad in {**NO_OBJECT, **HEADERS}.items()},
    **{f"{part}: too long": with_part(part, {"a": "x" * 100_000}) for part in ("parent", "metadata")},
    "another type after the first": with_part("header", b'{"msg_type": "stream", "msg_type": 5}'),
    "too few parts": lambda turn: turn.pack("stream", {"text": "a"})[:3],
    "one empty part": lambda turn: [b""],
    "64 empty parts": lambda turn: [b""] * 64,
    "65 parts": lambda turn: [*turn.pack("stream", {"text": "a"}), *[b""] * 61],
}


@pytest.mark.parametrize("channel", CHANNELS.values(), ids=CHANNELS.keys())
@pytest.mark.parametrize("pack", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_message_ends_the_kernel(
    new_tool: NewTool, pack: Callable[[Turn], list[bytes]], channel: int
) -> None:
    tool = new_tool(FakeEngine(lambda turn: turn.wire.send(channel, pack(turn))))
    (died,) = attacked(tool).outputs
    assert isinstance(died, Died)
    assert re.match(
        r"it sent a (malformed message|message without a type|header that is too long|message of \d+ parts)$",
        re.sub(r" \(\w+\)$", "", died.reason),
    )
    assert_goes_on(tool, died.reason)


ODD = {
    **{f"metadata: {name}": ("metadata", bad) for name, bad in {**BAD_JSON, **NO_OBJECT}.items() if len(bad) < 60_000},
    **{f"header: {name}": ("header", odd) for name, odd in UNREAD.items()},
}


@pytest.mark.parametrize(("name", "part"), ODD.values(), ids=ODD.keys())
def test_what_nobody_reads_of_a_message_may_be_anything(new_tool: NewTool, name: str, part: object) -> None:
    check(new_tool, Row(in_turn(prints("a", **{name: part}), finishes), (A,)))


def test_a_message_that_was_sent_before_is_another_one(new_tool: NewTool) -> None:
    def attack(turn: Turn) -> None:
        parts = turn.pack("stream", {"text": "a"})
        for _ in range(3):
            turn.wire.send(IOPUB, parts)
        turn.finish()

    check(new_tool, Row(attack, (Stream("stdout", "aaa"),)))


def test_buffers_after_a_message_are_ignored(new_tool: NewTool) -> None:
    def attack(turn: Turn) -> None:
        turn.wire.send(IOPUB, [*turn.pack("stream", {"text": "a"}), *[b"\xff" * 1000] * 60])
        turn.finish()

    check(new_tool, Row(attack, (A,)))


# -- bytes that are no messages ---------------------------------------------------------------------------------------

NO_MESSAGE = "it sent bytes that are no message"


def over(size: int) -> str:
    return f"it sent a message of {size:,} bytes, over {16 * MIB:,} bytes"


LARGEST = 2**32 - 1  # that a size can say
PARTS = {
    f"{count} parts": (message(channel, [b"x"] * count), f"it sent a message of {count} parts")
    for channel, count in itertools.product((IOPUB, SHELL), (0, 1, 2, 3, 65, 66, 128, 255))
}
NOISE = {
    "HTTP": (b"HTTP/1.1 400 Bad Request\r\n\r\n", NO_MESSAGE),
    "ones": (b"\xff" * 1000, NO_MESSAGE),
    "NULs": (bytes(1000), NO_MESSAGE),
    "ZeroMQ's greeting": (b"\xff" + bytes(8) + b"\x7f\x03\x00NULL".ljust(55, b"\0"), NO_MESSAGE),
    "channel 0": (message(0, [b"{}"] * 4), NO_MESSAGE),
    "channel 5": (message(5, [b"{}"] * 4), NO_MESSAGE),
    "a size of 4 GiB": (sizes(IOPUB, LARGEST, 2, 2, 2), over(LARGEST)),
    "sizes of 256 GiB": (sizes(IOPUB, *[LARGEST] * 64), over(LARGEST)),
    "a content of 300 MiB": (sizes(SHELL, 2, 2, 2, 300 * MIB), over(300 * MIB + 26)),
    "a buffer of 300 MiB": (sizes(IOPUB, 2, 2, 2, 2, 300 * MIB), over(300 * MIB + 32)),
    "one byte over the limit": (sizes(IOPUB, 0, 0, 0, 16 * MIB - 19), over(16 * MIB + 1)),
    "parts that are together too long": (sizes(IOPUB, 0, 0, 9 * MIB, 9 * MIB), over(18 * MIB + 20)),
    "sizes that are not its length": (
        pack(IOPUB, bytes((0, 0, 0, 4, *[0, 0, 0, 2] * 4)) + b"{}{}{}"),
        "it sent a message whose parts are not as it says",
    ),
    **PARTS,
}


@pytest.mark.parametrize(("noise", "reason"), NOISE.values(), ids=NOISE.keys())
def test_what_is_no_message_ends_the_kernel(new_tool: NewTool, noise: bytes, reason: str) -> None:
    def attack(turn: Turn) -> None:
        turn.wire.send_bytes(noise)

    check(new_tool, Row(attack, (Died(reason),), reason))


@pytest.mark.parametrize(("noise", "reason"), NOISE.values(), ids=NOISE.keys())
def test_outputs_before_what_is_no_message_are_shown(new_tool: NewTool, noise: bytes, reason: str) -> None:
    attack = in_turn(prints("a"), lambda turn: turn.wire.send_bytes(noise))
    check(new_tool, Row(attack, (A, Died(reason)), reason))


def starts_a_message(*of_parts: int) -> Script:
    return lambda turn: turn.wire.send_bytes(sizes(IOPUB, *of_parts))


def sends(data: bytes) -> Script:
    return lambda turn: turn.wire.send_bytes(data)


def sends_in_pieces_for_ever(turn: Turn) -> None:
    turn.wire.send_bytes(sizes(IOPUB, 0, 0, 0, 15 * MIB))
    for _ in range(100):
        turn.wire.send_bytes(b"x")
        turn.kernel.ended.wait(0.01)


def hangs_up_in_mid_message(turn: Turn) -> None:
    turn.wire.send_bytes(message(IOPUB, turn.pack("stream", {"text": "a"}))[:-1])
    turn.wire.hang_up()


def hangs_up(turn: Turn) -> None:
    turn.wire.hang_up()


HUNG_UP = "it closed its channel"
HALVES = {
    "the first byte, then silence": Row(sends(sizes(IOPUB, 2, 2, 2, 2)[:1]), (LOST,), STUBBORN, 0.2),
    "no sizes, then silence": Row(sends(sizes(IOPUB, 2, 2, 2, 2)[:8]), (LOST,), STUBBORN, 0.2),
    "half the sizes, then silence": Row(sends(sizes(SHELL, 2, 2, 2, 2)[:20]), (LOST,), STUBBORN, 0.2),
    "sizes, then silence": Row(starts_a_message(2, 2, 2, 2), (LOST,), STUBBORN, 0.2),
    "half a part, then silence": Row(sends(message(IOPUB, [b"x" * 1000] * 4)[:99]), (LOST,), STUBBORN, 0.2),
    "half a part, and the reply in it": Row(
        in_turn(starts_a_message(2, 2, 2, 5000), prints("a"), finishes), (LOST,), STUBBORN, 0.2
    ),
    "a byte at a time": Row(sends_in_pieces_for_ever, (LOST,), STUBBORN, 0.2),
    "a hang-up in mid-message": Row(hangs_up_in_mid_message, (Died(HUNG_UP),), HUNG_UP),
    "a hang-up in mid-sizes": Row(in_turn(sends(sizes(IOPUB, 2, 2, 2, 2)[:20]), hangs_up), (Died(HUNG_UP),), HUNG_UP),
    "a hang-up": Row(hangs_up, (Died(HUNG_UP),), HUNG_UP),
    "a hang-up after an output": Row(in_turn(prints("a"), hangs_up), (A, Died(HUNG_UP)), HUNG_UP),
}


@rows(HALVES)
def test_half_a_message_is_not_waited_for(new_tool: NewTool, row: Row) -> None:
    check(new_tool, row)


def test_a_kernel_that_stops_reading_is_not_waited_for(new_tool: NewTool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "SEND_SECONDS", 0.5)
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
            kernel.wire.send_bytes(piece)
        kernel.ended.wait(LONG_ENOUGH)

    return opening


def hangs_up_at_once(kernel: FakeKernel) -> None:
    kernel.wire.hang_up()


def floods_from_its_start(kernel: FakeKernel) -> None:
    while True:
        kernel.wire.send(SHELL, kernel.pack("kernel_info_reply", {}, parent={}))


def fails(kernel: FakeKernel) -> None:
    kernel.init.say(write(Failed(1, "\x1b[31mTraceback")))
    kernel.ended.wait(LONG_ENOUGH)


def talks_for_ever(words: bytes) -> Opening:
    def opening(kernel: FakeKernel) -> None:
        while not kernel.ended.is_set():
            kernel.init.say(words)

    return opening


OPENINGS: dict[str, Opening] = {
    "silence": opens_with(),
    "HTTP": opens_with(b"HTTP/1.1 400 Bad Request\r\n".ljust(64)),
    "half the sizes": opens_with(sizes(IOPUB, 2, 2, 2, 2)[:20]),
    "sizes alone": opens_with(sizes(IOPUB, 2, 2, 2, 2)),
    "a message without its last byte": opens_with(message(IOPUB, [b"{}"] * 4)[:-1]),
    "noise": opens_with(b"\xff" * 100),
    "sizes and noise": opens_with(sizes(IOPUB, 2, 2, 2, 2), b"\xff" * 100),
    "a hang-up": hangs_up_at_once,
    "a malformed message": opens_with(message(IOPUB, [b"ready"] * 4)),
    "a message of 3 parts": opens_with(message(IOPUB, [b"{}"] * 3)),
    "a message over the limit": opens_with(sizes(IOPUB, 0, 0, 0, LARGEST)),
    "an endless talk of PID 1": talks_for_ever(b"hello"),
    "endless reports of another kernel": talks_for_ever(b"exit 77 0 0 0 /tmp 0 0"),
    "endless reports that PID 1 is ready": talks_for_ever(b"ready"),
    "its exit": talks_for_ever(b"exit 1 3 0 0 /tmp 0 0"),
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


def test_a_kernel_that_floods_from_its_start_is_ended_at_the_time_limit(new_tool: NewTool) -> None:
    tool = new_tool(FakeEngine(finishes, [floods_from_its_start]))
    started = time.monotonic()
    assert tool.run("first", timeout=0.2).outputs == (LOST,)
    assert time.monotonic() - started < PATIENCE
    assert tool.run("again").outputs == (Restarted(STUBBORN), Stream("stdout", "run 1\n"))


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


def talks_on(words: bytes) -> Script:
    def talk(turn: Turn) -> None:
        while not turn.kernel.ended.is_set():
            turn.kernel.init.say(words)

    return talk


GONE = "the sandbox ended"
LONG = b"9" * 4000
LINE = b'{"text": "%s"}' % (b"x" * 100)
CUT = (Stream("stdout", "x" * 20_000), Stream("stdout", "x" * 20_000))
DIED = (Died("its process exited with code 7"),)
KILLED = "it was killed by signal 9 (SIGKILL)"
MALFORMED_REPORTS = (
    *(b" ", b"exit", b"exit 1", b"exit 1 7", b"exit one 0 0 0 /tmp 0 0", b"exit 1 seven 0 0 /tmp 0 0"),
    *(b"exit 1 -1 0 0 /tmp 0 0", b"exit 1 \x1b[31m 0 0 /tmp 0 0", b"exit 1 0x7 0 0 /tmp 0 0", b"exit 1 7 0 2 /tmp 0 0"),
    *(b"exit 1 7 0 0 /home 0 0", b"exit 1 7 0 0 /tmp 0 0 0", b"exit -1 0 0 0 /tmp 0 0", b"exit 1 code 7"),
    *(b"exit 1 0 " + LONG + b" 0 /tmp 0 0", b"exit " + LONG + b" 1 0 0 /tmp 0 0", b"failed", b"failed 1"),
    *(
        b"failed one eA==",
        b"\xff" * 4096,
        b"a b c d e",
        b"\0",
        b"Exit 1 7 0 0 /tmp 0 0",
        b"start 2",
        b"kill",
        b"ready 1",
    ),
    *("exit 1 \u0667 0 0 /tmp 0 0".encode(), b"exit 1 2147483648 0 0 /tmp 0 0", b"exit 1 0 99999999999 0 /tmp 0 0"),
)
OTHERS = (
    b"exit 0 7 0 0 /tmp 0 0",
    b"exit 2 7 0 0 /tmp 0 0",
    b"exit 77 0 9 1 /tmp 0 0",
    write(Failed(2, "Traceback")),
    b"ready",
)
WORDS = {
    "a forged exit": Row(words(b"exit 1 7 0 0 /tmp 0 0"), DIED, "its process exited with code 7"),
    "a forged exit by an unknown signal": Row(
        words(b"exit 1 0 777 0 /tmp 0 0"), (Died("it was killed by signal 777"),), "it was killed by signal 777"
    ),
    "two exits": Row(words(b"exit 1 7 0 0 /tmp 0 0", b"exit 1 0 9 0 /tmp 0 0"), DIED, "its process exited with code 7"),
    "much output, and then an exit": Row(
        in_turn(lambda turn: turn.flood("stream", [LINE] * 5000), words(b"exit 1 7 0 0 /tmp 0 0")),
        (CUT[0], Omitted("460,000 characters"), CUT[1], *DIED),
        "its process exited with code 7",
    ),
    "malformed reports": Row(in_turn(words(*MALFORMED_REPORTS), prints("a"), finishes), (A,)),
    "reports of other kernels": Row(in_turn(words(*OTHERS), prints("a"), finishes), (A,)),
    "a late report of a failed start": Row(in_turn(words(write(Failed(1, "Traceback"))), prints("a"), finishes), (A,)),
    "last words, and then an exit": Row(
        in_turn(prints("a"), words(b"printed 1 stdout Yg==", b"printed 1 stderr G1szMW1j", b"exit 1 7 0 0 /tmp 0 0")),
        (AB, Stream("stderr", "c"), *DIED),
        "its process exited with code 7",
    ),
    "last words of other kernels": Row(in_turn(words(b"printed 2 stdout Yg=="), prints("a"), finishes), (A,)),
    "an empty datagram": Row(words(b""), (Died(GONE),), GONE),
    "a hang-up": Row(lambda turn: turn.kernel.init.hang_up(), (Died(GONE),), GONE),
    "an endless talk": Row(talks_on(b"hello"), (LOST,), STUBBORN, 0.2),
    "endless reports of another kernel": Row(talks_on(b"exit 77 0 0 0 /tmp 0 0"), (LOST,), STUBBORN, 0.2),
    "endless reports that it is ready": Row(talks_on(b"ready"), (LOST,), STUBBORN, 0.2),
    "no ear for orders": Row(goes_deaf, (LOST,), STUBBORN, 0.2),
    "no ear for orders, and a broken message": Row(
        in_turn(goes_deaf, lambda turn: turn.wire.send_bytes(b"\xff" * 9)), (Died(NO_MESSAGE),), NO_MESSAGE
    ),
}


@rows(WORDS)
def test_a_pid_1_that_lies_or_goes_deaf_ends_with_its_sandbox(new_tool: NewTool, row: Row) -> None:
    check(new_tool, row)


def test_endless_last_words_are_cut_and_ended_at_the_time_limit(new_tool: NewTool) -> None:
    tool = new_tool(FakeEngine(talks_on(b"printed 1 stdout " + b"eHh4" * 1000)))
    first, omitted, last, end = attacked(tool, 0.2).outputs
    assert (first, last, end) == (*CUT, LOST)
    assert isinstance(omitted, Omitted)
    assert_goes_on(tool, STUBBORN)


BETWEEN_RUNS: dict[str, tuple[Script, str]] = {
    "nothing": (does_nothing, ""),
    "a hang-up": (lambda turn: turn.wire.hang_up(), KILLED),
    "noise": (sends(b"\xff" * 100), NO_MESSAGE),
    "a message of 3 parts": (sends(message(IOPUB, [b"{}"] * 3)), "it sent a message of 3 parts"),
    "a malformed message": (sends(message(IOPUB, [b"no JSON"] * 4)), "it sent a malformed message (JSONDecodeError)"),
    "its exit": (words(b"exit 1 7 0 0 /tmp 0 0"), "its process exited with code 7"),
    "the exit of another kernel": (words(b"exit 7 7 0 0 /tmp 0 0"), ""),
    "malformed reports": (words(*MALFORMED_REPORTS), ""),
    "the end of the sandbox": (lambda turn: turn.kernel.init.hang_up(), GONE),
    "an empty datagram": (words(b""), GONE),
}


@pytest.mark.parametrize(("then", "lost"), BETWEEN_RUNS.values(), ids=BETWEEN_RUNS.keys())
def test_what_comes_between_runs_is_told_by_the_next_if_the_kernel_is_lost(
    new_tool: NewTool, then: Script, lost: str
) -> None:
    is_done = threading.Event()
    tool = new_tool(FakeEngine(in_turn(prints("a"), finishes, then, lambda turn: is_done.set())))
    assert attacked(tool).outputs == (A,)
    assert is_done.wait(LONG_ENOUGH)
    assert_goes_on(tool, lost)


def test_half_a_message_between_runs_costs_the_next_run_and_no_more(new_tool: NewTool) -> None:
    is_done = threading.Event()
    half = sends(sizes(IOPUB, 0, 0, 0, 99)[:17])
    tool = new_tool(FakeEngine(in_turn(finishes, half, lambda turn: is_done.set())))
    assert attacked(tool).outputs == ()
    assert is_done.wait(LONG_ENOUGH)
    first, *rest = tool.run("next", timeout=0.2).outputs
    assert (type(first) in (Died, TimedOut), rest) == (True, [])
    assert isinstance(tool.run("next").outputs[0], Restarted)
