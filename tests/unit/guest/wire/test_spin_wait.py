"""The spin before sleeping: it finds what is there, ends with its time, and then sleeps in the system's selector."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator

import pytest

from agent_tools.guest.wire.spin_wait import CROWD_SECONDS, SPIN_SECONDS, SpinLock, SpinningSelector, SpinWait

LOOKS = 5  # that the clock of these tests allows
FOREVER = 10.0  # seconds: only a failing test waits this long


class Clock:
    """A clock that goes on with each look; `then` is done at the last one."""

    def __init__(self) -> None:
        self.now = 0.0
        self.looks = 0
        self.then = lambda: None

    def __call__(self) -> float:
        self.looks += 1
        self.now += SPIN_SECONDS / LOOKS
        if self.looks == LOOKS - 1:
            self.then()
        return self.now


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def spin(clock: Clock) -> SpinWait:
    return SpinWait(clock)


@pytest.fixture
def selector(spin: SpinWait, pair: tuple[socket.socket, socket.socket]) -> Iterator[selectors.BaseSelector]:
    with SpinningSelector(spin, SpinLock()) as made:
        made.register(pair[0], selectors.EVENT_READ)
        yield made


def test_a_spin_ends_with_its_time(spin: SpinWait, clock: Clock) -> None:
    assert not spin.goes_on()
    spin.begin()
    while spin.goes_on():
        assert clock.looks < 3 * LOOKS
    assert not spin.goes_on()


def test_a_byte_that_comes_during_a_spin_is_found_without_sleeping(
    selector: selectors.BaseSelector, spin: SpinWait, clock: Clock, pair: tuple[socket.socket, socket.socket]
) -> None:
    clock.then = lambda: pair[1].send(b"x")  # type: ignore[assignment,return-value]
    spin.begin()
    assert [key.fileobj for key, _ in selector.select(None)] == [pair[0]]
    assert clock.looks == LOOKS - 1


def test_a_selector_that_found_nothing_sleeps_as_ever(
    selector: selectors.BaseSelector, spin: SpinWait, clock: Clock
) -> None:
    spin.begin()
    assert selector.select(2 * SPIN_SECONDS) == []
    assert clock.looks > LOOKS


@pytest.mark.parametrize("timeout", [0, SPIN_SECONDS])
def test_a_short_wait_does_not_spin(
    selector: selectors.BaseSelector, spin: SpinWait, clock: Clock, timeout: float
) -> None:
    spin.begin()
    assert selector.select(timeout) == []
    assert clock.looks == 1


def test_a_selector_without_a_call_does_not_spin(
    selector: selectors.BaseSelector, clock: Clock, pair: tuple[socket.socket, socket.socket]
) -> None:
    pair[1].send(b"x")
    assert selector.select(FOREVER)
    assert clock.looks == 1


class Pause:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_several_loops_that_want_to_spin_stop_for_a_while() -> None:
    pause = Pause()
    lock = SpinLock(pause)
    assert lock.acquire()
    assert not lock.acquire()
    lock.release()
    pause.now = CROWD_SECONDS - 0.001
    assert not lock.acquire()
    pause.now = CROWD_SECONDS
    assert lock.acquire()
    lock.release()
    assert lock.acquire()


def test_a_selector_without_the_lock_sleeps(
    spin: SpinWait, clock: Clock, pair: tuple[socket.socket, socket.socket]
) -> None:
    lock = SpinLock(Pause())
    assert lock.acquire()
    with SpinningSelector(spin, lock) as selector:
        selector.register(pair[0], selectors.EVENT_READ)
        spin.begin()
        assert selector.select(2 * SPIN_SECONDS) == []
    assert clock.looks == 2
