"""The look before sleeping: it sees what is there, ends with its time, and leaves everything else to the system."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator

import pytest

from agent_tools.guest.wire.lookout import CROWD_SECONDS, LOOK_SECONDS, LookingSelector, Lookout, Seat

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
        self.now += LOOK_SECONDS / LOOKS
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
def lookout(clock: Clock) -> Lookout:
    return Lookout(clock)


@pytest.fixture
def selector(lookout: Lookout, pair: tuple[socket.socket, socket.socket]) -> Iterator[selectors.BaseSelector]:
    with LookingSelector(lookout, Seat()) as made:
        made.register(pair[0], selectors.EVENT_READ)
        yield made


def test_it_ends_with_its_time(lookout: Lookout, clock: Clock) -> None:
    assert not lookout.goes_on()
    lookout.begin()
    while lookout.goes_on():
        assert clock.looks < 3 * LOOKS
    assert not lookout.goes_on()


def test_what_comes_while_it_looks_is_found_without_sleeping(
    selector: selectors.BaseSelector, lookout: Lookout, clock: Clock, pair: tuple[socket.socket, socket.socket]
) -> None:
    clock.then = lambda: pair[1].send(b"x")  # type: ignore[assignment,return-value]
    lookout.begin()
    assert [key.fileobj for key, _ in selector.select(None)] == [pair[0]]
    assert clock.looks == LOOKS - 1


def test_a_selector_that_found_nothing_sleeps_as_ever(
    selector: selectors.BaseSelector, lookout: Lookout, clock: Clock
) -> None:
    lookout.begin()
    assert selector.select(2 * LOOK_SECONDS) == []
    assert clock.looks > LOOKS


@pytest.mark.parametrize("timeout", [0, LOOK_SECONDS])
def test_who_hardly_waits_does_not_look(
    selector: selectors.BaseSelector, lookout: Lookout, clock: Clock, timeout: float
) -> None:
    lookout.begin()
    assert selector.select(timeout) == []
    assert clock.looks == 1


def test_without_a_call_nobody_looks(
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


def test_where_several_would_look_nobody_does_for_a_while() -> None:
    pause = Pause()
    seat = Seat(pause)
    assert seat.take()
    assert not seat.take()
    seat.leave()
    pause.now = CROWD_SECONDS - 0.001
    assert not seat.take()
    pause.now = CROWD_SECONDS
    assert seat.take()
    seat.leave()
    assert seat.take()


def test_who_has_no_seat_sleeps_as_ever(
    lookout: Lookout, clock: Clock, pair: tuple[socket.socket, socket.socket]
) -> None:
    seat = Seat(Pause())
    assert seat.take()
    with LookingSelector(lookout, seat) as selector:
        selector.register(pair[0], selectors.EVENT_READ)
        lookout.begin()
        assert selector.select(2 * LOOK_SECONDS) == []
    assert clock.looks == 2
