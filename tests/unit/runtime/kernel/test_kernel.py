"""A kernel's runs on a clock of the test's; the test holds the far ends of its channel and its lifeline."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from agent_tools.guest.wire.words import MAX_GRACES, Arm, Disarm, Exit, Interrupt, Kill, Order, read_order, write
from agent_tools.limits import MIB, Limits
from agent_tools.results.execution import Died, Output, Stream, TimedOut
from agent_tools.runtime.kernel.channel import CHUNK_BYTES, KernelChannel
from agent_tools.runtime.kernel.escalation import KILL_MARGIN
from agent_tools.runtime.kernel.kernel import Kernel
from agent_tools.runtime.transport.lifeline import Lifeline

TIMEOUT = 30.0
LIMITS = Limits()
GRACES = LIMITS.interrupt_grace + LIMITS.kill_grace * MAX_GRACES + KILL_MARGIN
ARMED = Arm(TIMEOUT + LIMITS.interrupt_grace, LIMITS.kill_grace)
TICK = Stream("stdout", "tick")


class Rig:
    """A kernel, its clock, and PID 1's end of the lifeline. A run yields TICK each time it has looked around."""

    def __init__(self, channel: KernelChannel, lifeline: Lifeline, init: socket.socket, guest: socket.socket) -> None:
        self.guest = guest
        self.now = 1000.0
        self.kernel = Kernel(channel, lifeline, LIMITS, 64 * MIB, clock=lambda: self.now)
        self._init = init

    def run(self) -> Generator[Output, None, None]:
        outputs = self.kernel.execute("code", TIMEOUT, beside=lambda: [TICK])
        assert isinstance(outputs, Generator)
        return outputs

    def orders(self) -> list[Order | None]:
        """What PID 1 was ordered since the last look."""
        found: list[Order | None] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(read_order(self._init.recv(4096)))
        return found

    def has_code(self) -> bool:
        """Whether the kernel could read a request."""
        return bool(select.select([self.guest], [], [], 0)[0])

    def report(self, exit_: Exit) -> None:
        self._init.send(write(exit_))


@pytest.fixture
def rig() -> Iterator[Rig]:
    with _connected() as rig:
        yield rig


@contextmanager
def _connected() -> Iterator[Rig]:
    ours, theirs = socket.socketpair()
    words, init = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    init.setblocking(False)
    with theirs, init:
        lifeline = Lifeline(words)
        with closing(lifeline), closing(KernelChannel(ours, lifeline, 1, MIB)) as channel:
            yield Rig(channel, lifeline, init, theirs)


def test_the_limit_on_the_host_begins_before_the_kernel_has_the_code(rig: Rig) -> None:
    arrived: list[bool] = []

    def clock() -> float:
        arrived.append(rig.has_code())
        return rig.now

    kernel = Kernel(rig.kernel.channel, rig.kernel.lifeline, LIMITS, 64 * MIB, clock=clock)
    with closing(kernel.execute("code", TIMEOUT, beside=lambda: [TICK])) as run:
        next(run)
        assert arrived[0] is False
        assert arrived[-1] is True
        rig.report(Exit(1, signal=9))


def test_a_run_is_killed_after_its_time_and_the_graces_and_not_before(rig: Rig) -> None:
    run = rig.run()
    assert next(run) == TICK
    assert rig.orders() == [ARMED]
    rig.now += TIMEOUT + GRACES - 0.01
    assert [next(run), next(run)] == [TICK, TICK]
    assert rig.orders() == []
    rig.now += 0.01
    assert next(run) == TICK
    assert rig.orders() == [Kill()]
    rig.report(Exit(1, signal=9))
    assert [output for output in run if output != TICK] == [TimedOut(TIMEOUT, state_kept=False)]


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_run_whose_code_is_read_slowly_ends_as_any_other(rig: Rig, is_cancelled: bool) -> None:
    cancelled, orders, size = threading.Event(), list[Order | None](), 0

    def read() -> None:
        nonlocal size
        while Kill() not in orders and size < 8 * MIB:
            size += len(rig.guest.recv(CHUNK_BYTES))
            orders.extend(rig.orders())
            rig.now += 1.0
            if is_cancelled:
                cancelled.set()
        rig.report(Exit(1, signal=9))

    reader = threading.Thread(target=read)
    reader.start()
    (ending,) = rig.kernel.execute("x" * 8 * MIB, TIMEOUT, cancelled)
    reader.join()
    assert size < 8 * MIB
    assert isinstance(orders[0], Arm)
    assert orders[1:] == [*[Interrupt(LIMITS.cancel_grace)] * is_cancelled, Kill()]
    assert isinstance(ending, Died if is_cancelled else TimedOut)


def test_a_cancel_that_comes_after_its_run_does_not_reach_the_next(rig: Rig) -> None:
    with closing(rig.kernel.execute("code", TIMEOUT, mine := threading.Event(), beside=lambda: [TICK])) as run:
        next(run)
        rig.orders()
        rig.kernel.cancel(threading.Event())
        assert rig.orders() == []
        rig.kernel.cancel(mine)
        assert rig.orders() == [Interrupt(LIMITS.cancel_grace)]
        rig.report(Exit(1, signal=9))


def test_a_run_that_is_held_is_left_alone_and_has_as_much_time_afterwards(rig: Rig) -> None:
    run = rig.run()
    assert next(run) == TICK
    rig.now += 10.0
    rig.kernel.hold()
    rig.now += 1_000_000.0
    assert [next(run), next(run)] == [TICK, TICK]
    assert rig.orders() == [ARMED, Disarm()]
    rig.kernel.go()
    rig.now += TIMEOUT - 10.0 + GRACES - 0.01
    assert next(run) == TICK
    assert rig.orders() == [Arm(ARMED.interrupt - 10.0, ARMED.kill)]
    rig.now += 0.01
    assert next(run) == TICK
    assert rig.orders() == [Kill()]
    rig.report(Exit(1, signal=9))
    assert [output for output in run if output != TICK] == [TimedOut(TIMEOUT, state_kept=False)]


def test_a_run_whose_code_waits_before_the_host_has_noted_it_is_held_all_the_same(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = rig.kernel.channel.send_execute

    def overtaken(*args: Any, **kwargs: Any) -> str:
        request = send(*args, **kwargs)
        rig.kernel.hold()
        return request

    monkeypatch.setattr(rig.kernel.channel, "send_execute", overtaken)
    run = rig.run()
    next(run)
    rig.now += 1_000_000.0
    next(run)
    held = rig.orders()
    rig.kernel.go()
    next(run)
    going = rig.orders()
    rig.report(Exit(1, signal=9))
    assert not any(isinstance(output, TimedOut) for output in run)
    assert (held, going) == ([], [ARMED]), "all of its time is left"


def test_the_time_goes_on_when_the_last_of_several_holds_is_over(rig: Rig) -> None:
    run = rig.run()
    assert next(run) == TICK
    rig.kernel.hold()
    rig.kernel.hold()
    rig.kernel.go()
    rig.now += 1_000_000.0
    assert next(run) == TICK
    assert rig.orders() == [ARMED, Disarm()]
    rig.kernel.go()
    assert rig.orders() == [ARMED]
    rig.report(Exit(1, code=1))
    assert [output for output in run if output != TICK] == [Died("its process exited with code 1")]


def test_a_kernel_that_has_ended_is_not_killed_again_since_another_may_have_its_place(rig: Rig) -> None:
    rig.report(Exit(1, signal=9))
    assert not rig.kernel.is_alive()
    rig.kernel.kill("the disk is full")
    assert rig.orders() == []
