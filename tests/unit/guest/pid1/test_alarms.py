"""When a kernel is interrupted and killed, by a clock and a processor time that stand still between two looks."""

from __future__ import annotations

import math
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from agent_tools.guest.pid1.alarms import AGAIN, NUDGE, NUDGE_AFTER, Alarms
from agent_tools.guest.pid1.init import Init
from agent_tools.guest.pid1.lifeline import SocketLifeline, StdioLifeline
from agent_tools.guest.processes import processor_time
from agent_tools.guest.wire.framing import HEADER
from agent_tools.guest.wire.mux import WORDS
from agent_tools.guest.wire.words import MAX_GRACES, Arm, Disarm, Interrupt, Order, write

TIMEOUT, GRACE = 10.0, 0.5
PID = 2**22 + 1  # no process has it: none ignores a signal
Connect = Callable[[Path, list[Order]], "SocketLifeline | StdioLifeline"]


class Machine:
    """A kernel that gets a share of the processor, and the alarms that watch it."""

    def __init__(self, share: float) -> None:
        self.now, self.used = 100.0, 7.0
        self.share = share
        self.alarms = Alarms(lambda: self.now, lambda _: self.used)

    def signals(self, seconds: float) -> list[tuple[float, int]]:
        """Return when which signal was due, in seconds from now, but for nudges."""
        return [each for each in self.all_signals(seconds) if each[1] != NUDGE]

    def all_signals(self, seconds: float) -> list[tuple[float, int]]:
        """Let time go by as the alarms ask for it; return when which signal was due, in seconds from now."""
        started, found = self.now, list[tuple[float, int]]()
        while waits := self.alarms.seconds():
            wait = max(min(waits), 0.0)
            if self.now + wait > started + seconds:
                break
            self.now += wait
            self.used += wait * self.share
            found += [(round(self.now - started, 2), number) for number in self.alarms.due(PID)]
        return found


@pytest.mark.parametrize(
    ("share", "killed_after"),
    [
        (1.0, GRACE),  # it spins
        (4.0, GRACE),  # on four processors: it has the time that it would have had alone
        (0.5, 2 * GRACE),  # beside one busy program
        (0.01, MAX_GRACES * GRACE),  # beside a hundred
        (0.0, MAX_GRACES * GRACE),  # it sleeps
        (math.nan, GRACE),  # the operating system does not tell
    ],
)
def test_the_grace_of_a_kernel_is_its_processor_time_within_a_bound(share: float, killed_after: float) -> None:
    machine = Machine(share)
    machine.alarms.arm(TIMEOUT, GRACE)
    interrupted, killed = machine.signals(60)
    assert interrupted == (TIMEOUT, signal.SIGINT)
    assert killed[1] == signal.SIGKILL
    assert killed[0] == pytest.approx(TIMEOUT + killed_after, abs=0.051)
    assert machine.signals(60) == []


@pytest.mark.parametrize(("share", "killed_after"), [(1.0, 0.3), (0.5, 0.6), (0.0, 0.3 * MAX_GRACES)])
def test_a_cancelled_run_has_a_grace_of_processor_time_of_its_own(share: float, killed_after: float) -> None:
    machine = Machine(share)
    machine.alarms.arm(TIMEOUT, GRACE)
    machine.alarms.interrupt(0.3)
    interrupted, again, killed = machine.signals(60)
    assert (interrupted[1], again[1], killed[1]) == (signal.SIGINT, signal.SIGINT, signal.SIGKILL)
    assert again[0] - interrupted[0] == pytest.approx(AGAIN * 0.3, abs=0.011)
    assert killed[0] - interrupted[0] == pytest.approx(killed_after, abs=0.051)
    assert machine.signals(60) == []


def test_an_interrupt_without_a_grace_leaves_the_time_limit_as_it_is() -> None:
    machine = Machine(1.0)
    machine.alarms.arm(TIMEOUT, GRACE)
    machine.alarms.interrupt(0.0)
    numbers = [number for _, number in machine.signals(60)]
    assert numbers == [signal.SIGINT, signal.SIGINT, signal.SIGKILL]


def test_an_interrupt_is_followed_by_a_nudge_unless_the_run_is_over() -> None:
    for is_over in (False, True):
        machine = Machine(1.0)
        machine.alarms.arm(TIMEOUT, GRACE)
        machine.alarms.interrupt(0.0)
        assert machine.all_signals(NUDGE_AFTER / 2)[0][1] == signal.SIGINT
        if is_over:
            machine.alarms.disarm()
        found = [number for _, number in machine.all_signals(2 * NUDGE_AFTER)]
        assert found == ([] if is_over else [NUDGE])


def test_a_late_look_interrupts_first_and_kills_within_the_bound() -> None:
    machine = Machine(0.1)
    machine.alarms.arm(TIMEOUT, GRACE)
    machine.now += TIMEOUT + GRACE + 0.1  # PID 1 got no processor time either
    assert list(machine.alarms.due(PID)) == [signal.SIGINT]
    ((seconds, number),) = machine.signals(60)
    assert number == signal.SIGKILL
    assert seconds == pytest.approx((MAX_GRACES - 1) * GRACE - 0.1, abs=0.01)


def test_a_run_that_is_over_is_not_killed() -> None:
    machine = Machine(0.1)
    machine.alarms.arm(TIMEOUT, GRACE)
    assert machine.signals(TIMEOUT + GRACE) == [(TIMEOUT, signal.SIGINT)]
    machine.alarms.disarm()
    assert machine.signals(60) == []


def test_an_interrupt_without_an_armed_run_is_ignored() -> None:
    alarms = Machine(0.5).alarms
    alarms.interrupt(0)
    assert alarms.seconds() == []
    assert list(alarms.due(PID)) == []


def test_an_interrupt_of_an_armed_run_is_sent_once() -> None:
    alarms = Machine(0.5).alarms
    alarms.arm(TIMEOUT, GRACE)
    alarms.interrupt(0)
    assert list(alarms.due(0)) == []  # there is no kernel yet
    assert list(alarms.due(PID)) == [signal.SIGINT]
    assert list(alarms.due(PID)) == []


def test_an_interrupt_of_an_earlier_run_does_not_reach_the_next() -> None:
    alarms = Machine(0.5).alarms
    alarms.arm(TIMEOUT, GRACE)
    alarms.interrupt(0)
    alarms.arm(TIMEOUT, GRACE)
    assert list(alarms.due(PID)) == []


def test_the_processor_time_of_a_process_is_read() -> None:
    before = processor_time(os.getpid())
    assert 0 <= before <= sum(os.times()[:2]) + 0.02
    assert processor_time(PID) == math.inf


def mounted(folder: Path, orders: list[Order]) -> SocketLifeline:
    """Return PID 1's end of a mounted socket with such orders, whose host has hung up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(1)
        lifeline = SocketLifeline(str(folder / "socket"))
        with listener.accept()[0] as host:
            for order in orders:
                host.send(write(order))
    return lifeline


def piped(_: Path, orders: list[Order]) -> StdioLifeline:
    """Return the same over pipes."""
    reader, writer = os.pipe()
    lines = map(write, orders)
    os.write(writer, b"".join(HEADER.pack(WORDS, len(line)) + line for line in lines))
    os.close(writer)
    return StdioLifeline(reader, os.open(os.devnull, os.O_WRONLY))


class Reach:
    """Reaches nobody; notes whether the kernel was interrupted before all that PID 1 has is stopped at its end."""

    interrupted: bool

    def __init__(self, kernel: int) -> None:
        self._status = Path(f"/proc/{kernel}/status")

    def kill_all_but(self, spared: set[int]) -> None:
        pass

    def kill_branch(self, pid: int) -> bool:
        return False

    def signal(self, number: int) -> None:
        if number == signal.SIGSTOP and not hasattr(self, "interrupted"):
            lines = self._status.read_text("ascii").splitlines()
            pending = next(line.split()[1] for line in lines if line.startswith("ShdPnd"))
            self.interrupted = bool(int(pending, 16) & 1 << signal.SIGINT - 1)


def interrupts(lifeline: SocketLifeline | StdioLifeline, *, is_due: bool) -> bool:
    """Return whether a PID 1 with such orders interrupts its kernel, which notes signals and handles none.

    `is_due`: the time limit of the kernel's run has passed when the orders come.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # of the kernel from its beginning on
    kernel = os.fork()
    if kernel == 0:
        signal.alarm(60)
        signal.sigwait([signal.SIGALRM])
        os._exit(0)
    reach = Reach(kernel)
    init = Init(lifeline, lambda *_: None, cast("Any", reach))
    init.kernel_pid = kernel
    if is_due:
        init.alarms.arm(0, GRACE)
    init.serve()
    return reach.interrupted


@pytest.mark.parametrize("connect", [mounted, piped])
@pytest.mark.parametrize(("last", "is_interrupted"), [([], True), ([Disarm()], False)])
@pytest.mark.parametrize("is_due", [False, True])
def test_a_run_that_is_over_passes_its_interrupt_to_no_other(
    tmp_path: Path, connect: Connect, last: list[Order], is_interrupted: bool, is_due: bool
) -> None:
    lifeline = connect(tmp_path, [*([] if is_due else [Arm(TIMEOUT, GRACE), Interrupt()]), *last])
    pid = os.fork()  # of an Init all children are processes of the sandbox
    if pid == 0:
        found = None
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
            found = interrupts(lifeline, is_due=is_due)
        finally:
            os._exit(0 if found is is_interrupted else 1)
    lifeline.close()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
