"""Interrupts that wait until what must not break is done."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from agent_tools.guest.kernel import interrupts, magics
from agent_tools.guest.kernel.cell_processes import parents_first
from agent_tools.guest.kernel.countdown import Countdown
from agent_tools.guest.kernel.message_writer import MessageWriter
from agent_tools.guest.kernel.streams import Header, UnsentText
from agent_tools.guest.processes import ProcessStat
from agent_tools.guest.wire.framing import pack_parts


@pytest.fixture(autouse=True)
def a_state_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("was_noted", "raised", "rings", "shields"):
        monkeypatch.setattr(interrupts._State, name, type(getattr(interrupts._State, name))())
    monkeypatch.setattr(interrupts._State, "take_alarms", staticmethod(lambda: None))


def test_an_interrupt_waits_for_the_main_threads_work_alone() -> None:
    thread = threading.Thread(target=interrupts.shield.__enter__)
    thread.start()
    thread.join()
    assert not interrupts.is_shielded()
    with interrupts.shield:
        thread = threading.Thread(target=interrupts.shield.__exit__)
        thread.start()
        thread.join()
        assert interrupts.is_shielded()
        interrupts._State.was_noted = False  # it would be raised here
    assert not interrupts.is_shielded()


@pytest.mark.parametrize("is_gvisor", [False, True])
def test_a_nudge_ends_nothing_and_under_gvisor_neither_does_a_hangup(
    monkeypatch: pytest.MonkeyPatch, is_gvisor: bool
) -> None:
    handled = []
    monkeypatch.setattr(interrupts, "is_gvisor", lambda: is_gvisor)
    monkeypatch.setattr("signal.signal", lambda number, handler: handled.append((number, handler())))
    interrupts.let_be_nudged()
    numbers = [signal.SIGURG, signal.SIGHUP] if is_gvisor else [signal.SIGURG]
    assert handled == [(number, None) for number in numbers]


@pytest.fixture
def expected() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    interrupts.expect()
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_raises_in_the_code_alone(expected: None) -> None:
    with interrupts.reaching_code(lambda _: False):
        with interrupts.reaching_code(lambda _: False):  # code that runs code
            pass
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert interrupts.raised()
    assert not interrupts._State.was_noted
    signal.raise_signal(signal.SIGINT)
    assert interrupts._State.was_noted


@pytest.mark.parametrize("is_users", [False, True])
def test_a_second_interrupt_reaches_the_users_frames_alone(expected: None, is_users: bool) -> None:
    with interrupts.reaching_code(lambda _: is_users):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt) if is_users else nullcontext():
            signal.raise_signal(signal.SIGINT)


def test_code_that_sets_a_handler_of_its_own_keeps_it(expected: None) -> None:
    with interrupts.reaching_code(lambda _: True):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    with interrupts.reaching_code(lambda _: True):  # of which nothing is changed
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_that_had_to_wait_is_raised_though_the_clock_stands_still(expected: None) -> None:
    shell: Any = SimpleNamespace(is_held=lambda: True)
    interrupts._State.rings = True
    with interrupts.reaching_code(lambda _: True), pytest.raises(KeyboardInterrupt):
        Countdown(shell).expire(signal.SIGALRM, None)


def test_a_timer_that_met_a_system_call_rings_again(expected: None) -> None:
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: rung.append(number))
    try:
        interrupts.raise_soon()
        while len(rung) < 2:
            signal.pause()
        assert interrupts.rings()
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    finally:
        signal.signal(signal.SIGALRM, before)


def countdown(depth: int) -> Countdown:
    """Return the timer of a cell with a limit, so many cells deep."""
    parent = {"metadata": {"timeout": 30}}
    shell: Any = SimpleNamespace(depth=depth, kernel=SimpleNamespace(get_parent=lambda _: parent))
    return Countdown(shell)


@pytest.fixture
def own_timer() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_cell_within_a_cell_leaves_the_timer_as_it_is(own_timer: None) -> None:
    interrupts.raise_soon(5)
    countdown(2).start()
    countdown(1).cancel()
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 5


def test_an_interrupt_that_is_to_come_soon_is_kept_when_the_timer_is_set_for_the_limit(own_timer: None) -> None:
    interrupts.raise_soon(5)
    countdown(1).start()
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 5
    assert interrupts._State.was_noted


def test_an_interrupt_that_is_to_come_soon_is_not_for_the_next_cell(expected: None, own_timer: None) -> None:
    interrupts.raise_soon(5)
    interrupts.ignore()
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_the_codes_own_timer_outlives_a_cell_without_a_limit_and_goes_to_its_handler(own_timer: None) -> None:
    rung: list[int] = []
    parent: dict[str, Any] = {"metadata": {"timeout": 30}}
    shell: Any = SimpleNamespace(depth=0, kernel=SimpleNamespace(get_parent=lambda _: parent), is_held=lambda: False)
    timer = Countdown(shell)
    signal.signal(signal.SIGALRM, lambda number, _: rung.append(number))
    timer.start()
    timer.cancel()
    parent["metadata"] = {}
    timer.start()
    signal.setitimer(signal.ITIMER_REAL, 0.01, 30)
    while not rung:
        signal.pause()
    timer.cancel()
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 20


def test_an_interrupt_in_a_callback_at_the_end_of_a_cell_that_awaited_is_raised(own_timer: None) -> None:
    cancelled: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: cancelled.append(number))
    try:
        with interrupts.reaching_end(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert cancelled == [signal.SIGINT]
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with interrupts.reaching_end():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("kind", ["text", "message"])
def test_an_interrupt_while_text_is_sent_loses_none(expected: None, own_timer: None, kind: str) -> None:
    went: list[str] = []
    ours, theirs = socket.socketpair()

    class Interrupted:
        def send(self, data: bytes, _flags: int) -> int:
            signal.raise_signal(signal.SIGINT)
            return ours.send(data)

    def publish(_name: str, _parent: Header, text: str, _can_wait: bool) -> None:
        signal.raise_signal(signal.SIGINT)
        went.append(text)

    with ours, theirs, interrupts.reaching_code(lambda _: True):
        if kind == "text":
            unsent = UnsentText(threading.RLock(), publish)
            unsent.append("stdout", {}, "a")
            unsent.append("stderr", {}, "b")
            unsent.send()
            assert went == ["a", "b"]
        else:
            writer = MessageWriter(Interrupted())  # type: ignore[arg-type]
            writer.send(1, [b"{}"] * 4)
            writer.from_children.close()
            writer._to_parent.close()
            assert theirs.recv(1000) == pack_parts(1, [b"{}"] * 4)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0, "it is to come soon"


def test_an_interrupt_waits_until_a_magic_is_imported(expected: None, own_timer: None) -> None:
    loaded = []

    def load(name: str) -> None:
        signal.raise_signal(signal.SIGINT)
        loaded.append(name)

    with interrupts.reaching_code(lambda _: True):
        magics._load(load, "alias")
        assert loaded == ["alias"]
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0, "it is to come soon"


def test_a_shell_is_interrupted_before_its_program() -> None:
    table = {7: ProcessStat(1, 1, started=20), 8: ProcessStat(7, 1, started=20), 5: ProcessStat(8, 1, started=30)}
    assert parents_first(iter((5, 8, 7)), table) == [7, 8, 5]
