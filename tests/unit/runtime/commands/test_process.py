"""A command as the host sees it, before a guest that says what it likes."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from agent_tools.errors import InvalidParams
from agent_tools.guest.wire import commands as wire
from agent_tools.guest.wire.commands import WINDOW, CommandEnded, CommandPrinted, Input, Signal, Spec, Started, Taken
from agent_tools.runtime.commands.process import LOST, MAX_WAITING, Process

SPEC = Spec("cat", "", {}, 30.0, 1.0, has_stdin=True)


class Guest:
    """The other end of a command's socket."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.reader = wire.orders()

    def say(self, *events: wire.Event) -> None:
        self.end.sendall(b"".join(map(wire.write, events)))

    def hear(self) -> list[wire.Order]:
        self.end.setblocking(False)
        heard = []
        try:
            while data := self.end.recv(1 << 20):
                heard += list(self.reader.feed(data))
        except BlockingIOError:
            pass
        self.end.setblocking(True)
        return heard


@pytest.fixture
def guest() -> Iterator[Guest]:
    ours, theirs = socket.socketpair()
    with closing(theirs):
        guest = Guest(theirs)
        guest.ours = ours  # type: ignore[attr-defined]
        yield guest
        ours.close()


def started(guest: Guest, spec: Spec = SPEC, *, most: int = 1_000, stdin: bytes = b"") -> Process:
    process = Process(guest.ours, spec, most, stdin)  # type: ignore[attr-defined]
    process.advance()
    return process


def test_it_says_what_to_run_and_tells_how_it_ended(guest: Guest) -> None:
    process = started(guest)
    assert guest.hear() == [SPEC]
    assert process.poll() is None
    guest.say(
        Started(17),
        CommandPrinted("stdout", b"a"),
        CommandPrinted("stderr", b"b"),
        CommandPrinted("stdout", b"c"),
        CommandEnded("code", 3),
    )
    process.advance()
    assert (process.pid, process.poll(), process.is_over) == (17, 3, True)
    result = process.wait(0)
    assert (result.stdout, result.stderr, result.ok, result.output) == (b"ac", b"b", False, "acb")


@pytest.mark.parametrize(
    ("ended", "code", "told"),
    [
        (CommandEnded("code", 0), 0, ""),
        (CommandEnded("signal", signal.SIGTERM), 143, ""),
        (CommandEnded("signal", signal.SIGKILL, True), 124, ""),
        (CommandEnded("code", 0, True), 124, ""),
        (CommandEnded("no_program", 2), 127, "cat: No such file or directory"),
        (CommandEnded("no_program", 13), 126, "cat: Permission denied"),
        (CommandEnded("no_folder", 2), 127, "cwd nowhere: No such file or directory"),
    ],
)
def test_its_exit_code_is_a_shell_s(guest: Guest, ended: CommandEnded, code: int, told: str) -> None:
    process = started(guest, Spec(("cat",), "nowhere", {}, None, 1.0))
    guest.say(ended)
    process.advance()
    result = process.result()
    assert (result.exit_code, result.reason, result.timed_out) == (code, told, ended.timed_out)
    assert result.stderr.decode().strip() == told


def test_a_guest_that_hangs_up_or_lies_loses_only_this_command(guest: Guest) -> None:
    process = started(guest)
    guest.end.sendall(b"\xff" * 100)
    process.advance()
    assert (process.is_over, process.reason, process.poll()) == (True, LOST, 137)
    process.advance()
    process.signal(signal.SIGTERM)
    process.kill()


@pytest.mark.parametrize("last", [CommandEnded("code", 0), None], ids=["an end", "a loss"])
def test_what_its_end_calls_may_wait_for_a_thread_that_uses_it(guest: Guest, last: wire.Event | None) -> None:
    process = started(guest)
    told = []

    def other_thread_uses_it() -> None:
        user = threading.Thread(target=process.result, daemon=True)
        user.start()
        user.join(5)
        told.append(user.is_alive())
        with pytest.raises(TimeoutError):  # not over for others before this returns
            process.wait(0)

    process.when_over(other_thread_uses_it)
    guest.say(last) if last else guest.end.close()
    process.advance()
    process.wait(0)
    assert told == [False]


def test_input_goes_out_no_faster_than_it_is_taken(guest: Guest) -> None:
    data = bytes(range(256)) * (2 * WINDOW // 256)
    process = started(guest, stdin=data)
    process.close_stdin()
    heard, taken = b"", 0
    for _ in range(1_000):
        process.advance()
        heard += b"".join(order.data for order in guest.hear() if isinstance(order, Input))
        assert len(heard) - taken <= WINDOW
        if len(heard) == len(data):
            break
        guest.say(Taken(min(1_000_000, len(heard) - taken)))
        taken = len(heard)
    assert heard == data


def test_the_end_of_its_input_is_told_once_and_after_all_of_it(guest: Guest) -> None:
    process = started(guest)
    process.write_stdin(b"one")
    process.close_stdin()
    process.close_stdin()
    process.advance()
    assert [order for order in guest.hear() if isinstance(order, Input)] == [Input(b"one"), Input(b"")]
    with pytest.raises(BrokenPipeError):
        process.write_stdin(b"more")


def test_who_writes_more_than_it_reads_waits_and_is_told(guest: Guest) -> None:
    process = started(guest)
    with pytest.raises(TimeoutError, match="does not read"):
        process.write_stdin(bytes(MAX_WAITING + WINDOW + 1_000_000), timeout=0.01)
    process.kill()


def test_output_is_read_again_from_a_cursor_and_waited_for(guest: Guest) -> None:
    process = started(guest, most=4)
    guest.say(CommandPrinted("stdout", b"abc"), CommandPrinted("stderr", b"x"))
    process.advance()
    first = process.read()
    assert (first.stdout, first.stderr, first.cursor, first.omitted) == (b"abc", b"x", (3, 1), 0)
    assert process.read(first.cursor).stdout == b""

    def later() -> None:
        guest.say(CommandPrinted("stdout", b"defgh"))
        process.advance()

    threading.Timer(0.05, later).start()
    assert process.read(first.cursor, wait=30).stdout == b"efgh"
    again = process.read()
    assert (again.stdout, again.omitted, again.cursor) == (b"efgh", 4, (8, 1))
    assert process.result().truncated
    assert process.result().omitted_stdout == 4


def test_signals_go_to_it_and_unknown_ones_are_refused(guest: Guest) -> None:
    process = started(guest)
    process.signal(signal.SIGHUP)
    process.resize(10, 20)
    assert guest.hear()[1:] == [Signal(1), wire.Resize(10, 20)]
    with pytest.raises(ValueError, match="999"):
        process.signal(999)


def test_a_guest_that_does_not_end_it_in_time_is_given_up(guest: Guest) -> None:
    process = started(guest, Spec("cat", "", {}, 0.0, 0.0))
    process._started = time.monotonic() - 1_000
    process.look_at_clock()
    result = process.result()
    assert (result.exit_code, result.timed_out) == (124, True)
    assert "did not end it" in result.reason


def test_waiting_has_an_end(guest: Guest) -> None:
    process = started(guest)
    with pytest.raises(TimeoutError):
        process.wait(0.01)
    process.kill()
    assert process.wait(0).reason == "it was killed"


def test_a_function_that_looks_on_sees_the_pieces_in_order(guest: Guest) -> None:
    process, seen = started(guest), []
    process.on_output = lambda stream, data: seen.append((stream, data))
    guest.say(
        CommandPrinted("stdout", b"1"),
        CommandPrinted("stderr", b"2"),
        CommandPrinted("stdout", b"3"),
        CommandEnded("code", 0),
    )
    process.advance()
    assert seen == [("stdout", b"1"), ("stderr", b"2"), ("stdout", b"3")]


def test_a_paced_command_is_read_no_further_than_it_may_print(guest: Guest) -> None:
    process = started(guest)
    process.pace(10)
    assert not process.is_ahead
    guest.say(CommandPrinted("stdout", b"x" * 11))
    process.advance()
    assert process.is_ahead
    process.pace(11)
    assert not process.is_ahead


def test_a_size_that_no_terminal_has_is_refused(guest: Guest) -> None:
    process = started(guest)
    with pytest.raises(InvalidParams, match="65,535"):
        process.resize(70_000, 1)


def test_output_is_told_without_the_lock_so_that_another_thread_can_kill_it_meanwhile(guest: Guest) -> None:
    process = started(guest)

    def kill(_: str, __: bytes) -> None:
        killer = threading.Thread(target=process.kill, daemon=True)
        killer.start()
        killer.join(30)
        assert not killer.is_alive()

    process.on_output = kill
    guest.say(Started(17), CommandPrinted("stdout", b"a"))
    process.advance()
    assert (process.is_over, process.result().stdout) == (True, b"a")


def test_one_whose_end_was_not_read_yet_did_not_exceed_its_time(guest: Guest) -> None:
    process = started(guest)
    guest.say(Started(17), CommandPrinted("stdout", b"a"), CommandEnded("code", 0))
    process._started -= 600.0
    process.look_at_clock()
    assert (process.poll(), process.result().timed_out, process.result().stdout) == (0, False, b"a")
