"""The commands of one sandbox, before guests that are there, gone, or just being replaced."""

from __future__ import annotations

import gc
import io
import socket
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from agent_tools.errors import SandboxGone
from agent_tools.guest.wire import commands as wire
from agent_tools.guest.wire.commands import CommandEnded, CommandPrinted, Event, Input, Started
from agent_tools.limits import Limits
from agent_tools.results.commands import CommandResult
from agent_tools.runtime.commands.commands import Commands, Request


def connecting(*answers: tuple[Event, ...]) -> Callable[[], socket.socket | None]:
    """Give a socket for each command, on which its whole answer lies ready; None once there are no more."""
    left = list(answers)

    def connect() -> socket.socket | None:
        if not left:
            return None
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(b"".join(map(wire.write, left.pop(0))))
        return ours

    return connect


def run(connect: Callable[[], socket.socket | None], *, is_gone: bool = False) -> bytes:
    commands = Commands(Limits(), connect, lambda: is_gone)
    result = commands.run(Request("command", timeout=30.0), None, threading.Event())
    assert not commands.are_running
    return result.stdout or result.reason.encode()


DONE = (Started(7), CommandPrinted("stdout", b"done"), CommandEnded("code", 0))


def test_a_command_goes_to_its_end() -> None:
    assert run(connecting(DONE)) == b"done"


def test_one_that_was_handed_to_a_dying_server_is_given_to_the_next() -> None:
    assert run(connecting((), DONE)) == b"done"


def test_one_that_is_given_to_the_next_server_reads_its_whole_stdin_file() -> None:
    dying, (ours, theirs) = connecting(()), socket.socketpair()
    links = [ours, dying()]

    def serve() -> None:
        with theirs:
            theirs.sendall(wire.write(Started(7)))
            reader, given = wire.orders(), list[bytes]()
            while b"" not in given:
                given += [order.data for order in reader.feed(theirs.recv(1 << 16)) if isinstance(order, Input)]
            theirs.sendall(b"".join(map(wire.write, [CommandPrinted("stdout", b"".join(given)), DONE[-1]])))

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    request = Request("cat", stdin=io.BytesIO(b"first\nsecond\n"), timeout=30.0)
    result = Commands(Limits(), links.pop, lambda: False).run(request, None, threading.Event())
    server.join()
    assert result.stdout == b"first\nsecond\n"


def test_one_that_had_begun_is_never_run_twice() -> None:
    assert b"ended by code" in run(connecting((Started(7),), DONE))


def test_a_sandbox_that_is_gone_is_told_as_such() -> None:
    for connect in (connecting(), connecting((Started(7),))):
        with pytest.raises(SandboxGone):
            run(connect, is_gone=True)


def test_one_that_is_cancelled_before_it_has_begun_is_never_sent() -> None:
    cancelled = threading.Event()
    cancelled.set()
    connect = connecting(DONE)
    result = Commands(Limits(), connect, lambda: False).run(Request("command"), None, cancelled)
    assert (result.reason, result.stdout) == ("it was cancelled", b"")
    unused = connect()
    assert unused
    unused.close()


def test_one_that_is_cancelled_while_it_waits_for_its_turn_waits_no_longer() -> None:
    cancelled, (ours, theirs) = threading.Event(), socket.socketpair()
    commands = Commands(Limits(max_commands=1), [ours].pop, lambda: False)
    other = commands.start(Request("command"))
    results = list[CommandResult]()
    waiting = threading.Thread(target=lambda: results.append(commands.run(Request("next"), None, cancelled)))
    waiting.start()
    cancelled.set()
    waiting.join(30)
    assert [each.reason for each in results] == ["it was cancelled"]
    other.kill()
    theirs.close()


def test_one_that_ended_in_time_is_not_late_where_its_reader_was_away() -> None:
    request = Request("command", timeout=0.01)
    commands = Commands(Limits(command_grace=0.01), connecting(DONE), lambda: False)
    heard = list[bytes]()

    def slow(_: str, data: bytes) -> None:
        heard.append(data)
        (process,) = commands._running
        process._started -= 60.0

    result = commands.run(request, slow, threading.Event())
    assert (result.exit_code, result.timed_out, result.stdout, heard) == (0, False, b"done", [b"done"])


def test_a_stdin_that_cannot_be_read_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    class Broken(io.BytesIO):
        def read1(self, *_: object) -> bytes:
            raise TypeError

    ours, theirs = socket.socketpair()
    theirs.sendall(wire.write(Started(7)))

    def serve() -> None:
        reader = wire.orders()
        while Input(b"") not in reader.feed(theirs.recv(1 << 16)):
            pass
        theirs.sendall(wire.write(DONE[-1]))

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    request = Request("cat", stdin=Broken(), timeout=30.0)
    assert Commands(Limits(), [ours].pop, lambda: False).run(request, None, threading.Event()).exit_code == 0
    server.join(30)
    theirs.close()


@pytest.fixture
def without_gc() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_gc")
@pytest.mark.parametrize("timeout", [None, 600.0])
@pytest.mark.parametrize("way", ["foreground", "to its end", "killed"])
def test_an_ended_command_is_freed_with_its_last_reference(way: str, timeout: float | None) -> None:
    ours, theirs = socket.socketpair()
    freed = threading.Event()
    weakref.finalize(ours, freed.set)  # the command has the only reference to its socket
    links = [ours]
    del ours
    commands = Commands(Limits(), links.pop, lambda: False)
    done = b"".join(map(wire.write, DONE))
    with theirs:
        if way == "foreground":
            theirs.sendall(done)
            commands.run(Request("command", timeout=timeout), None, threading.Event())
        else:
            process = commands.start(Request("command", timeout=timeout))
            process.when_over(process.result)
            if way == "killed":
                process.kill()
            else:
                theirs.sendall(done)
            process.wait(30)
            del process
        assert freed.wait(30)
