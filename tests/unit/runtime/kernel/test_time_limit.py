"""A run's time limit, on a clock of the test's."""

from __future__ import annotations

import math

import pytest

from agent_tools.runtime.kernel.kernel import RunTimeLimit


class Clock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_time_is_up_so_many_seconds_from_its_beginning(clock: Clock) -> None:
    limit = RunTimeLimit(30.0, clock)
    assert (limit.timeout, limit.deadline) == (30.0, 1030.0)
    clock.now = 1029.0
    assert limit.deadline == 1030.0


def test_while_it_is_held_the_time_is_never_up(clock: Clock) -> None:
    limit = RunTimeLimit(30.0, clock)
    clock.now = 1010.0
    limit.hold()
    for clock.now in (1010.0, 1030.0, 10_000.0):
        assert limit.deadline == math.inf


def test_after_a_hold_as_much_is_left_as_before(clock: Clock) -> None:
    limit = RunTimeLimit(30.0, clock)
    clock.now = 1010.0
    limit.hold()
    clock.now = 5000.0
    assert limit.go() == 20.0
    assert limit.deadline == 5020.0


def test_holds_add_up_and_the_time_between_them_counts(clock: Clock) -> None:
    limit = RunTimeLimit(30.0, clock)
    left = []
    for clock.now in (1010.0, 2005.0, 3005.0):  # after ten seconds of its own, and twice five more
        limit.hold()
        clock.now = math.ceil(clock.now / 1000) * 1000.0
        left.append(limit.go())
    assert left == [20.0, 15.0, 10.0]
    assert limit.deadline == 4010.0


def test_a_hold_of_no_time_changes_nothing(clock: Clock) -> None:
    limit = RunTimeLimit(30.0, clock)
    limit.hold()
    assert limit.go() == 30.0
    assert limit.deadline == 1030.0


def test_a_limit_that_was_over_stays_over(clock: Clock) -> None:
    limit = RunTimeLimit(1.0, clock)
    clock.now = 1005.0
    limit.hold()
    clock.now = 1006.0
    assert limit.go() == -4.0
    assert limit.deadline == 1002.0


def test_the_timeout_stays_as_it_was_asked_for(clock: Clock) -> None:
    limit = RunTimeLimit(30.0, clock)
    limit.hold()
    clock.now = 9999.0
    limit.go()
    assert limit.timeout == 30.0
