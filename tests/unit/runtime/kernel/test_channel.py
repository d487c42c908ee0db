"""One kernel's messages and the lifeline beside them as one sequence of events; the test holds both far ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent_tools.errors import KernelDied
from agent_tools.guest.wire.framing import WINDOW
from agent_tools.guest.wire.mux import MAX_FRAME
from agent_tools.guest.wire.sockets import await_input
from agent_tools.guest.wire.words import Exit, Failed, Marked, write
from agent_tools.limits import MIB, Limits
from agent_tools.runtime.kernel import channel as channel_module
from agent_tools.runtime.kernel import escalation
from agent_tools.runtime.kernel.channel import (
    CHUNK_BYTES,
    MAX_REPORTS_AT_ONCE,
    Arrived,
    Event,
    KernelChannel,
)
from agent_tools.runtime.kernel.escalation import Broken, Disconnected, Reported, SandboxEnded
from agent_tools.runtime.kernel.kernel import Kernel
from agent_tools.runtime.kernel.run_numbers import RunNumbers
from agent_tools.runtime.transport.lifeline import Lifeline
from agent_tools.runtime.transport.relay import Relay
from agent_tools.runtime.transport.socket_stdio import SocketStdio
from tests.fake_kernel import CONTROL, IOPUB, SHELL, STDIN, message, sizes

LIMIT = 16 * MIB
SOON = 10.0  # seconds that nothing honest takes
GENERATION = 3


class Rig:
    """A channel; `kernel` is the far end of its socket, `init` that of its lifeline."""

    def __init__(self, opened: contextlib.ExitStack, limit: int = LIMIT) -> None:
        connected, self.kernel = socket.socketpair()
        words, self.init = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self.kernel, self.init):
            opened.enter_context(end)
            end.settimeout(SOON)
        self.lifeline = Lifeline(words)
        opened.callback(self.lifeline.close)
        self.channel = KernelChannel(connected, self.lifeline, GENERATION, limit)
        opened.callback(self.channel.close)

    def events(self, count: int) -> list[Event]:
        """The next events, as many as asked for."""
        found: list[Event] = []
        deadline = time.monotonic() + SOON
        while len(found) < count:
            assert time.monotonic() < deadline, found
            found += self.channel.receive(0.5)
        return found

    def sends(self, *texts: str) -> None:
        self.kernel.sendall(b"".join(map(stream, texts)))


@pytest.fixture
def new_rig() -> Iterator[Callable[..., Rig]]:
    with contextlib.ExitStack() as opened:
        yield lambda **how: Rig(opened, **how)


@pytest.fixture
def rig(new_rig: Callable[..., Rig]) -> Rig:
    return new_rig()


def parts(text: str, kind: str = "stream") -> list[bytes]:
    return [json.dumps(part).encode() for part in ({"msg_type": kind}, {"msg_id": "r"}, {}, {"text": text})]


def stream(text: str) -> bytes:
    return message(IOPUB, parts(text))


def texts(events: list[Event]) -> list[str]:
    """The texts of the messages, in order."""
    return [event.message.content["text"] for event in events if isinstance(event, Arrived)]


def soon() -> float:
    return time.monotonic() + SOON


# -- messages ---------------------------------------------------------------------------------------------------------


def test_messages_arrive_in_order_with_their_channel(rig: Rig) -> None:
    for number in (SHELL, IOPUB, CONTROL, STDIN, IOPUB, SHELL):
        rig.kernel.sendall(message(number, parts(f"on {number}")))
    found = [event.message for event in rig.events(6) if isinstance(event, Arrived)]
    assert [each.channel for each in found] == [SHELL, IOPUB, CONTROL, STDIN, IOPUB, SHELL]
    assert {(each.kind, each.parent_id) for each in found} == {("stream", "r")}
    assert found[0].content == {"text": "on 1"}


def test_many_small_messages_arrive_in_order(rig: Rig) -> None:
    sender = threading.Thread(target=lambda: [rig.sends(str(number)) for number in range(20_000)])
    sender.start()
    found = texts(rig.events(20_000))
    sender.join()
    assert found == [str(number) for number in range(20_000)]


def test_silence_is_no_event(rig: Rig) -> None:
    started = time.monotonic()
    assert list(rig.channel.receive(0.05)) == []
    assert 0.04 < time.monotonic() - started < SOON
    assert list(rig.channel.receive(0)) == []
    assert list(rig.channel.receive(-1)) == []


def test_one_look_takes_a_bounded_amount(rig: Rig) -> None:
    rig.kernel.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        for _ in range(10_000):
            rig.kernel.send(stream("x" * 100))
    found = list(rig.channel.receive(0))
    assert 0 < sum(map(len, texts(found))) <= CHUNK_BYTES


def test_messages_left_by_a_reader_that_stopped_come_at_once_the_next_time(rig: Rig) -> None:
    rig.sends("1", "2", "3")
    assert texts([next(rig.channel.receive(SOON))]) == ["1"]
    started = time.monotonic()
    assert texts(list(rig.channel.receive(SOON))) == ["2", "3"]
    assert time.monotonic() - started < SOON / 2


def test_a_message_in_pieces_arrives_once_it_is_whole(rig: Rig) -> None:
    data = stream("a")
    for at in range(len(data) - 1):
        rig.kernel.send(data[at : at + 1])
        assert list(rig.channel.receive(SOON)) == []
    rig.kernel.send(data[-1:])
    assert texts(list(rig.channel.receive(SOON))) == ["a"]


def test_a_hang_up_comes_after_the_last_message(rig: Rig) -> None:
    rig.sends("last")
    rig.kernel.close()
    found = rig.events(2)
    assert texts(found) == ["last"]
    assert found[1:] == [Disconnected()]
    assert list(rig.channel.receive(0)) == []


def test_a_report_waits_for_a_caller_who_leaves_at_a_message_before_it(rig: Rig) -> None:
    count = 2 * CHUNK_BYTES // len(stream("x" * 1_000))
    rig.sends(*["x" * 1_000] * count)
    rig.init.send(write(Exit(GENERATION)))
    seen = 0
    while seen < count:
        for event in rig.channel.receive(SOON):
            seen += isinstance(event, Arrived)
            if seen == count:
                break
    assert list(rig.channel.receive(0)) == [Reported(Exit(GENERATION))]


@pytest.mark.parametrize("cut", [1, 2, 7, 30, -1])
def test_a_message_cut_by_a_hang_up_never_arrives(rig: Rig, cut: int) -> None:
    rig.kernel.sendall(stream("whole") + stream("cut")[:cut])
    rig.kernel.close()
    found = rig.events(2)
    assert texts(found) == ["whole"]
    assert found[1:] == [Disconnected()]


BROKEN = {
    "noise": (b"\xff" * 100, "bytes that are no message"),
    "an unknown channel": (message(5, parts("a")), "bytes that are no message"),
    "3 parts": (message(IOPUB, parts("a")[:3]), "a message of 3 parts"),
    "65 parts": (message(IOPUB, [b""] * 65), "a message of 65 parts"),
    "too large": (sizes(IOPUB, 0, 0, 0, LIMIT - 19), f"a message of {LIMIT + 1:,} bytes, over {LIMIT:,} bytes"),
    "no JSON": (message(IOPUB, [b"{"] * 4), "a malformed message (JSONDecodeError)"),
    "no type": (message(IOPUB, [b"{}"] * 4), "a malformed message (KeyError)"),
    "a header that is too long": (message(IOPUB, [bytes(99_999), *[b"{}"] * 3]), "a header that is too long"),
}


@pytest.mark.parametrize(("data", "reason"), BROKEN.values(), ids=BROKEN.keys())
def test_what_breaks_the_protocol_ends_the_channel_after_what_came_before(rig: Rig, data: bytes, reason: str) -> None:
    rig.kernel.sendall(stream("before") + data + stream("after"))
    found = rig.events(2)
    assert texts(found) == ["before"]
    assert found[1:] == [Broken(reason)]
    assert list(rig.channel.receive(0)) == []
    with pytest.raises(BrokenPipeError):
        rig.kernel.sendall(bytes(MIB))


def test_large_messages_that_nobody_wants_are_not_kept(rig: Rig) -> None:
    data = message(CONTROL, [*parts("a"), bytes(4 * MIB)])
    sender = threading.Thread(target=lambda: [rig.kernel.sendall(data) for _ in range(20)])
    tracemalloc.start()
    sender.start()
    count = 0
    while count < 20:
        count += sum(1 for _ in rig.channel.receive(SOON))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    sender.join()
    assert peak < 20 * MIB


# -- reports ----------------------------------------------------------------------------------------------------------


def test_reports_about_this_kernel_are_events(rig: Rig) -> None:
    for line in (b"exit 3 0 9 1 /tmp 0 0", write(Failed(3, "Traceback: x")), b"exit 3 7 0 0 /tmp 0 0"):
        rig.init.send(line)
    assert rig.events(3) == [
        Reported(Exit(3, signal=9, oom=True)),
        Reported(Failed(3, "Traceback: x")),
        Reported(Exit(3, code=7)),
    ]


NO_EVENTS = [
    b"ready",
    b"exit 2 7 0 0 /tmp 0 0",
    b"exit 4 0 9 0 /tmp 0 0",
    write(Failed(2, "Traceback")),
    b"hello",
    b" ",
    b"\xff" * 5000,
]


@pytest.mark.parametrize("line", NO_EVENTS, ids=lambda line: line[:20].decode("latin-1"))
def test_reports_about_other_kernels_and_unknown_words_are_none(rig: Rig, line: bytes) -> None:
    rig.init.send(line)
    assert list(rig.channel.receive(SOON)) == []
    rig.sends("a")
    assert texts(rig.events(1)) == ["a"]


def test_the_end_of_the_sandbox_is_told_once(rig: Rig) -> None:
    rig.init.send(b"exit 3 0 0 0 /tmp 0 0")
    rig.init.close()
    assert rig.events(2) == [Reported(Exit(3)), SandboxEnded()]
    started = time.monotonic()
    assert list(rig.channel.receive(0.05)) == []
    assert time.monotonic() - started > 0.04  # it is not looked at any more


def test_an_empty_datagram_is_the_end_of_the_sandbox(rig: Rig) -> None:
    rig.init.send(b"")
    assert rig.events(1) == [SandboxEnded()]
    assert rig.lifeline.has_ended


ENDS: dict[str, tuple[Callable[[Rig], object], Event]] = {
    "of the kernel": (lambda rig: rig.init.send(b"exit 3 0 0 0 /tmp 0 0"), Reported(Exit(3))),
    "of its sandbox": (lambda rig: rig.init.close(), SandboxEnded()),
}


@pytest.mark.parametrize(("ends", "event"), ENDS.values(), ids=ENDS.keys())
@pytest.mark.parametrize("hangs_up", [True, False])
def test_the_end_comes_after_all_that_the_kernel_had_sent(
    rig: Rig, ends: Callable[[Rig], object], event: Event, hangs_up: bool
) -> None:
    rig.kernel.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            rig.kernel.send(stream("x" * 1000))
            sent += 1
    if hangs_up:
        rig.kernel.close()
    ends(rig)
    found = list(rig.channel.receive(SOON))
    assert sent * 1000 > CHUNK_BYTES
    assert len(texts(found)) >= sent  # the last one may be cut
    assert found[-1] == event


def test_over_stdio_the_end_of_a_kernel_comes_after_all_that_it_had_sent() -> None:
    """More than the local socket holds, for a reader who is late."""
    with contextlib.ExitStack() as opened:
        pipe, guest = socket.socketpair()
        far, near = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        relay = Relay(SocketStdio(pipe), near)
        connected, carried = socket.socketpair()
        relay.carry(1, carried)
        opened.enter_context(guest)
        opened.callback(relay.close)
        lifeline = opened.enter_context(contextlib.closing(Lifeline(far)))
        channel = opened.enter_context(contextlib.closing(KernelChannel(connected, lifeline, GENERATION, LIMIT)))
        count = (WINDOW - 1000) // len(stream("x" * 1000))
        data = stream("x" * 1000) * count
        for at in range(0, len(data), MAX_FRAME):
            guest.sendall(frame(1, data[at : at + MAX_FRAME]))
        guest.sendall(frame(0, b"exit 3 0 0 0 /tmp 0 0") + frame(1))
        assert await_input(lifeline.fileno(), SOON)
        found: list[Event] = []
        while Reported(Exit(3)) not in found:
            found += channel.receive(SOON)
    assert len(texts(found)) == count


def frame(number: int, payload: bytes = b"") -> bytes:
    """A frame of the mux (guest/wire/mux.py)."""
    return struct.pack(">II", number, len(payload)) + payload


def test_the_end_of_a_kernel_comes_after_its_hang_up(rig: Rig) -> None:
    rig.sends("last")
    rig.kernel.close()
    rig.init.send(b"exit 3 0 0 0 /tmp 0 0")
    found = list(rig.channel.receive(SOON))
    assert texts(found) == ["last"]
    assert found[1:] == [Disconnected(), Reported(Exit(3))]


class Flood:
    """Threads that write without end, until the other side hangs up."""

    def __init__(self, *works: Callable[[], object]) -> None:
        self._threads = [threading.Thread(target=self._go_on, args=(work,), daemon=True) for work in works]
        for thread in self._threads:
            thread.start()

    def _go_on(self, work: Callable[[], object]) -> None:
        with contextlib.suppress(OSError):
            while True:
                work()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(SOON)
            assert not thread.is_alive()


WRITES_ON = """
import os, sys
data = sys.stdin.buffer.read()
while True:
    os.write(int(sys.argv[1]), data)
"""


@pytest.mark.timeout(60)
def test_the_end_of_a_kernel_whose_socket_never_runs_dry_is_told(rig: Rig) -> None:
    """A process of its own writes faster than this one reads."""
    rig.kernel.setblocking(True)
    writer = [sys.executable, "-S", "-c", WRITES_ON, str(rig.kernel.fileno())]
    with subprocess.Popen(writer, stdin=subprocess.PIPE, pass_fds=[rig.kernel.fileno()]) as process:
        try:
            process.communicate(stream("x" * 10) * 10_000, timeout=0.5)
        except subprocess.TimeoutExpired:
            rig.init.send(b"exit 3 0 0 0 /tmp 0 0")
            found = [type(event) for event in rig.channel.receive(SOON)]
        finally:
            process.kill()
    assert Reported in found
    assert found[0] is Arrived


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "line", [b"hello", b"exit 3 0 0 0 /tmp 0 0", b"exit 77 0 0 0 /tmp 0 0", b"ready"], ids=bytes.decode
)
def test_a_lifeline_that_never_runs_dry_does_not_hold_a_run_up(rig: Rig, line: bytes) -> None:
    flood = Flood(lambda: rig.init.send(line))
    rig.sends("a")
    deadline = soon()
    found: list[Event] = []
    while not texts(found):
        look = list(rig.channel.receive(1.0))
        assert len(look) <= MAX_REPORTS_AT_ONCE + 1
        found += look
    started = time.monotonic()
    assert await_input(rig.lifeline.fileno(), SOON)
    between = Kernel(rig.channel, rig.lifeline, Limits(), 64 * MIB)
    assert between.is_alive() is not line.startswith(b"exit 3")
    assert time.monotonic() - started < 5.0 < deadline
    rig.lifeline.close()
    flood.join()


# -- the first message ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [SHELL, IOPUB, CONTROL, STDIN])
def test_a_kernel_is_ready_with_its_first_message(rig: Rig, number: int) -> None:
    rig.kernel.sendall(message(number, parts("ready", "status")))
    rig.channel.await_kernel(soon())


def test_what_follows_the_first_message_is_kept(rig: Rig) -> None:
    rig.sends("ready", "next")
    rig.channel.await_kernel(soon())
    assert texts(rig.events(1)) == ["next"]


@pytest.mark.parametrize("sent", [0, 1, 2, 17, 30])
@pytest.mark.parametrize("timeout", [0.05, 0.0, -1.0])
def test_a_silent_kernel_is_not_waited_for(rig: Rig, sent: int, timeout: float) -> None:
    rig.kernel.sendall(stream("ready")[:sent])
    started = time.monotonic()
    with pytest.raises(KernelDied, match="it did not become ready in time"):
        rig.channel.await_kernel(time.monotonic() + timeout)
    assert time.monotonic() - started < 5.0


def test_a_kernel_that_only_hangs_up_is_waited_for_until_its_end_is_told(rig: Rig) -> None:
    rig.kernel.close()
    with pytest.raises(KernelDied, match="it did not become ready in time"):
        rig.channel.await_kernel(time.monotonic() + 0.05)
    rig.init.send(b"exit 3 1 0 0 /tmp 0 0")
    with pytest.raises(KernelDied, match="it ended at its start"):
        rig.channel.await_kernel(soon())


def test_a_kernel_that_hangs_up_in_its_first_message_is_never_ready(new_rig: Callable[..., Rig]) -> None:
    for cut in range(len(stream("ready"))):
        rig = new_rig()
        rig.kernel.sendall(stream("ready")[:cut])
        rig.kernel.close()
        rig.init.send(b"exit 3 1 0 0 /tmp 0 0")
        with pytest.raises(KernelDied, match="it ended at its start"):
            rig.channel.await_kernel(soon())


STARTS = {
    "its exit": (lambda rig: rig.init.send(b"exit 3 1 0 0 /tmp 0 0"), "it ended at its start$"),
    "its memory limit": (lambda rig: rig.init.send(b"exit 3 0 9 1 /tmp 0 0"), "at its memory limit: raise `memory`"),
    "a failure": (
        lambda rig: rig.init.send(write(Failed(3, "\x1b[31mTraceback: x"))),
        "it failed to start: Traceback: x",
    ),
    "the sandbox's end": (lambda rig: rig.init.close(), "the sandbox ended before its kernel was ready"),
    "noise": (lambda rig: rig.kernel.send(b"\xff" * 8), "it sent bytes that are no message at its start"),
    "a broken message": (lambda rig: rig.kernel.send(message(IOPUB, [b"x"] * 4)), r"it sent a malformed message \("),
    "too few parts": (lambda rig: rig.kernel.send(message(IOPUB, [b""])), "it sent a message of 1 parts at its start"),
}


@pytest.mark.parametrize(("does", "reason"), STARTS.values(), ids=STARTS.keys())
def test_a_kernel_that_cannot_become_ready_is_an_error_at_once(
    rig: Rig, does: Callable[[Rig], object], reason: str
) -> None:
    does(rig)
    started = time.monotonic()
    with pytest.raises(KernelDied, match=reason):
        rig.channel.await_kernel(soon())
    assert time.monotonic() - started < SOON / 2


def test_the_end_of_an_earlier_kernel_is_not_this_ones(rig: Rig) -> None:
    rig.init.send(b"exit 2 0 9 0 /tmp 0 0")
    rig.init.send(write(Failed(2, "Traceback")))
    rig.sends("ready", "next")
    rig.channel.await_kernel(soon())
    rig.init.send(b"exit 2 0 9 0 /tmp 0 0")
    assert [type(event) for event in rig.events(1)] == [Arrived]


@pytest.mark.timeout(60)
def test_an_endless_talk_is_not_listened_to_for_ever(rig: Rig) -> None:
    flood = Flood(lambda: rig.init.send(b"exit 2 0 0 0 /tmp 0 0"))
    with pytest.raises(KernelDied, match="it did not become ready in time"):
        rig.channel.await_kernel(time.monotonic() + 0.2)
    rig.lifeline.close()
    flood.join()


# -- between runs -----------------------------------------------------------------------------------------------------


class BetweenRuns:
    """A kernel over the rig's channel that runs nothing."""

    def __init__(self, rig: Rig) -> None:
        self.kernel = Kernel(rig.channel, rig.lifeline, Limits(max_text_chars=1000), 64 * MIB)

    def look(self) -> tuple[bool, str]:
        """Whether it lives, and the text so far, without the sentence before it."""
        is_alive = self.kernel.is_alive()
        (text,) = [note.text.partition("\n")[2] for note in self.kernel.background.take_notices()] or [""]
        return is_alive, text


def test_nothing_there_is_nothing_to_note(rig: Rig) -> None:
    assert BetweenRuns(rig).look() == (True, "")


def test_what_is_read_is_noted_once_and_the_place_is_kept(rig: Rig) -> None:
    data, between = stream("one ") + stream("two ") + stream("three"), BetweenRuns(rig)
    rig.kernel.sendall(data[: len(stream("one ")) + 20])
    assert between.look() == (True, "one ")
    rig.kernel.sendall(data[len(stream("one ")) + 20 :])
    assert between.look() == (True, "two three")


def test_what_a_reader_left_is_noted_too(rig: Rig) -> None:
    rig.sends("1", "2", "3")
    assert texts([next(rig.channel.receive(SOON))]) == ["1"]
    assert BetweenRuns(rig).look() == (True, "23")
    rig.sends("4")
    assert texts(rig.events(1)) == ["4"]


@pytest.mark.parametrize(("data", "reason"), BROKEN.values(), ids=BROKEN.keys())
def test_the_limits_are_the_same_between_runs(rig: Rig, data: bytes, reason: str) -> None:
    between = BetweenRuns(rig)
    rig.kernel.sendall(stream("before") + data + stream("after"))
    assert between.look() == (False, "before")
    assert between.kernel.end_reason == f"it sent {reason}"
    assert between.look() == (False, "")


def test_an_end_between_runs_comes_with_its_reason_and_last_words(new_rig: Callable[..., Rig]) -> None:
    printed, ended = b"printed 3 stderr d29yZHM=", b"exit 3 7 0 0 /tmp 0 0"
    for does, words, reason in (
        ((lambda rig: rig.init.close(),), "last ", "the sandbox ended"),
        ((lambda rig: rig.init.send(ended),), "last ", "its process exited with code 7"),
        ((lambda rig: rig.init.send(printed), lambda rig: rig.init.send(ended)), "last words", "with code 7"),
    ):
        for hangs_up in (True, False):
            rig = new_rig()
            rig.sends("last ")
            if hangs_up:
                rig.kernel.close()
            for each in does:
                each(rig)
            between = BetweenRuns(rig)
            assert between.look() == (False, words)
            assert between.kernel.end_reason.endswith(reason)


def test_an_end_that_is_told_late_after_a_hang_up_keeps_its_reason(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(escalation, "END_GRACE", 0.01)  # as on a machine that gives PID 1 no time for a while
    rig.kernel.close()
    between = BetweenRuns(rig)
    telling = threading.Timer(0.1, rig.init.send, [b"exit 3 0 11 0 /tmp 0 0"])
    telling.start()
    assert not between.kernel.is_alive()
    telling.join()
    assert between.kernel.end_reason.endswith("signal 11 (SIGSEGV)")


@pytest.mark.timeout(60)
def test_a_flood_is_read_for_a_while_and_no_longer(rig: Rig) -> None:
    some = ["x" * 1000] * 50
    rig.sends(*some)
    between, flood = BetweenRuns(rig), Flood(lambda: rig.sends(*some))
    started = time.monotonic()
    tracemalloc.start()
    is_alive, text = between.look()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert time.monotonic() - started < 5.0
    assert is_alive
    assert re.fullmatch(r"x{500}\n\[\.\.\. [\d,]{6,} characters left out \.\.\.\]\nx{500}", text)
    assert peak < 5 * MIB
    assert len(texts(rig.events(1))) >= 1  # still in step
    rig.channel.close()
    flood.join()


# -- requests ---------------------------------------------------------------------------------------------------------


def read_request(kernel: socket.socket) -> tuple[int, list[Any]]:
    """The channel of the next message, and its parts as values."""

    def exactly(size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += kernel.recv(size - len(data))
        return data

    number, _, count = struct.unpack(">3I", exactly(12))
    lengths = struct.unpack(f">{count}I", exactly(4 * count))
    return number, [json.loads(exactly(length)) for length in lengths]


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_request_is_jupyters(rig: Rig, is_silent: bool) -> None:
    request_id = rig.channel.send_execute("print('中')", 12.5, is_silent=is_silent)
    number, (header, parent, metadata, content) = read_request(rig.kernel)
    assert (number, parent, metadata) == (SHELL, {}, {"timeout": 12.5, "is_unwatched": True})
    assert (header["msg_id"], header["msg_type"]) == (request_id, "execute_request")
    assert set(header) == {"msg_id", "msg_type", "username", "session", "date", "version"}
    assert (content["code"], content["allow_stdin"]) == ("print('中')", False)
    assert (content["silent"], content["store_history"]) == (is_silent, not is_silent)


def test_many_requests_arrive_in_order_and_no_two_are_the_same(rig: Rig) -> None:
    ids = []
    for number in range(500):
        ids.append(rig.channel.send_execute(str(number), 1.0))
        _, (header, _, _, content) = read_request(rig.kernel)
        assert (header["msg_id"], content["code"]) == (ids[-1], str(number))
    assert len(set(ids)) == 500


def test_a_request_larger_than_the_sockets_buffer_arrives(rig: Rig) -> None:
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.append(read_request(rig.kernel)))
    reader.start()
    rig.channel.send_execute("x" * 4 * MIB, 1.0)
    reader.join()
    assert found[0][1][3]["code"] == "x" * 4 * MIB


def test_a_kernel_that_does_not_read_is_seen_as_closed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "SEND_SECONDS", 0.05)
    rig.channel.send_execute("x" * 4 * MIB, 1.0)
    assert rig.events(1) == [Disconnected()]


def test_a_kernel_that_reads_slowly_gets_a_long_request(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "SEND_SECONDS", 1.0)
    pieces: list[bytes] = []

    def read() -> None:
        while sum(map(len, pieces)) < 5 * MIB and (piece := rig.kernel.recv(CHUNK_BYTES)):
            pieces.append(piece)
            time.sleep(0.02)

    reader = threading.Thread(target=read)
    reader.start()
    rig.channel.send_execute("x" * 5 * MIB, 1.0)
    reader.join()
    assert sum(map(len, pieces)) >= 5 * MIB


def test_a_kernel_that_reads_a_little_now_and_then_is_not_waited_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "SEND_SECONDS", 0.3)
    is_over = threading.Event()

    def sip() -> None:
        while not is_over.wait(0.02):
            rig.kernel.recv(100)

    reader = threading.Thread(target=sip)
    reader.start()
    started = time.monotonic()
    rig.channel.send_execute("x" * 4 * MIB, 1.0)
    assert time.monotonic() - started < 3.0
    is_over.set()
    reader.join()
    assert rig.events(1) == [Disconnected()]


def test_a_late_answer_about_a_checkpoint_is_not_taken_for_the_present_one(rig: Rig) -> None:
    def answer() -> None:
        _, (header, *_) = read_request(rig.kernel)
        reply = [{"msg_type": "execute_reply"}, {"msg_id": header["msg_id"]}, {}, {"status": "ok"}]
        rig.kernel.sendall(message(SHELL, [json.dumps(part).encode() for part in reply]))

    def ask(run: int) -> None:
        for each in (run - 1, run):
            rig.init.send(write(Marked(GENERATION, each)))

    runs = RunNumbers()
    runs.begin(is_cell=True)
    runs.begin(is_cell=True)
    kernel = threading.Thread(target=answer)
    kernel.start()
    assert Kernel(rig.channel, rig.lifeline, Limits(), 64 * MIB, runs).mark(SOON, ask) == 2
    kernel.join()


def test_nothing_follows_a_request_that_was_cut_short(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "SEND_SECONDS", 0.05)
    rig.channel.send_execute("x" * 4 * MIB, 1.0)
    rig.channel.send_execute("next", 1.0)
    data = b""
    while piece := rig.kernel.recv(MIB):
        data += piece
    assert b"next" not in data


def test_a_request_to_a_kernel_that_is_gone_is_no_error(rig: Rig) -> None:
    rig.kernel.close()
    rig.channel.send_execute("1", 1.0)
    assert rig.events(1) == [Disconnected()]
    rig.channel.send_execute("2", 1.0)


def test_a_closed_channel_takes_and_gives_nothing(rig: Rig) -> None:
    rig.sends("unread")
    assert texts([next(rig.channel.receive(SOON))]) == ["unread"]
    rig.channel.close()
    rig.channel.close()
    rig.channel.send_execute("1", 1.0)
    assert list(rig.channel.receive(0)) == []
    assert rig.kernel.recv(1) == b""


def test_closing_lets_go_of_its_descriptor_whatever_came_before(new_rig: Callable[..., Rig]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for does in (lambda rig: None, lambda rig: rig.kernel.send(b"\xff\xff"), lambda rig: rig.kernel.close()):
        with contextlib.ExitStack() as opened:
            rig = Rig(opened)
            does(rig)
            list(rig.channel.receive(0.01))
        assert len(os.listdir("/proc/self/fd")) == before
