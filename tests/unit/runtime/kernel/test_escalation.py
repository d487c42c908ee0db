"""The end of a run: every state with every event and with time that passes, without a thread, a socket or a clock."""

from __future__ import annotations

import itertools
import math
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.guest.wire.words import MAX_GRACES, Exit, Interrupt, Kill, Order
from agent_tools.limits import Limits
from agent_tools.runtime.kernel.escalation import (
    END_GRACE,
    HANG_UP_GRACE,
    KILL_MARGIN,
    LATE_END_GRACE,
    LATE_HANG_UP_GRACE,
    Answer,
    Broken,
    Cancelled,
    Condemned,
    Disconnected,
    Ended,
    Event,
    Gone,
    HungUp,
    Interrupted,
    Killed,
    Moment,
    Over,
    Replied,
    Reported,
    Running,
    SandboxEnded,
    Silent,
    State,
    Why,
    advance,
    due,
    lapse,
    order_on_entering,
)

LIMITS = Limits(interrupt_grace=0.2, kill_grace=0.5)
GRACE = 0.4  # of a run that was cancelled
DEADLINE = 100.0
IN_TIME, LATE = 50.0, 100.0  # before the deadline, and at it
LEFT = Exit(1, code=3)
STOPPED = Exit(1, signal=9)
STOPPED_BY_MEMORY = Exit(1, signal=9, oom=True)
CRASHED = Exit(1, signal=11)

RUNNING, INTERRUPTED, HUNG_UP = Running(), Interrupted(40.0, GRACE), HungUp(40.0)
OVERDUE = Killed(40.0, Why.OVERDUE)
BROKEN = Killed(40.0, Why.BROKE, "bytes that are no message", "protocol_violation")
ANSWERED = Over(Answer(40.0))
ENDED = Over(Ended(LEFT))
BROKE, CONDEMNED = Broken("noise"), Condemned("it filled work_dir", "work_dir_quota")

Row = tuple[State, Event, float, State]
ROWS: list[Row] = [
    # in this state, this happens, now (the time is up at 100), and this is the next state
    (RUNNING, Replied(), IN_TIME, Over(Answer(50.0))),
    (RUNNING, Replied(), LATE, Over(Answer(100.0))),
    (RUNNING, Cancelled(GRACE), IN_TIME, Interrupted(50.0, GRACE)),
    (RUNNING, Cancelled(GRACE), LATE, Interrupted(100.0, GRACE)),
    (RUNNING, Disconnected(), IN_TIME, HungUp(50.0)),
    (RUNNING, Disconnected(), LATE, HungUp(100.0)),
    (RUNNING, BROKE, IN_TIME, Killed(50.0, Why.BROKE, "noise", "protocol_violation")),
    (RUNNING, CONDEMNED, IN_TIME, Killed(50.0, Why.CONDEMNED, "it filled work_dir", "work_dir_quota")),
    (RUNNING, Reported(LEFT), IN_TIME, Over(Ended(LEFT))),
    (RUNNING, Reported(LEFT), LATE, Over(Ended(LEFT))),
    (RUNNING, Reported(CRASHED), LATE, Over(Ended(CRASHED))),
    (RUNNING, Reported(STOPPED), IN_TIME, Over(Ended(STOPPED))),
    (RUNNING, Reported(STOPPED), LATE, Over(Ended(STOPPED, Why.OVERDUE))),
    (RUNNING, Reported(STOPPED_BY_MEMORY), LATE, Over(Ended(STOPPED_BY_MEMORY))),
    (RUNNING, SandboxEnded(), IN_TIME, Over(Ended(Gone()))),
    (RUNNING, SandboxEnded(), LATE, Over(Ended(Gone()))),
    (INTERRUPTED, Replied(), IN_TIME, Over(Answer(50.0))),
    (INTERRUPTED, Cancelled(), IN_TIME, INTERRUPTED),
    (INTERRUPTED, Disconnected(), IN_TIME, HungUp(50.0)),
    (INTERRUPTED, BROKE, IN_TIME, Killed(50.0, Why.BROKE, "noise", "protocol_violation")),
    (INTERRUPTED, CONDEMNED, IN_TIME, Killed(50.0, Why.CONDEMNED, "it filled work_dir", "work_dir_quota")),
    (INTERRUPTED, Reported(LEFT), IN_TIME, Over(Ended(LEFT))),
    (INTERRUPTED, Reported(STOPPED), IN_TIME, Over(Ended(STOPPED, Why.DEAF))),
    (INTERRUPTED, Reported(STOPPED), 40.0 + GRACE / 2, Over(Ended(STOPPED))),
    (INTERRUPTED, Reported(STOPPED_BY_MEMORY), IN_TIME, Over(Ended(STOPPED_BY_MEMORY))),
    (INTERRUPTED, Reported(STOPPED), LATE, Over(Ended(STOPPED, Why.OVERDUE))),
    (INTERRUPTED, SandboxEnded(), IN_TIME, Over(Ended(Gone()))),
    (HUNG_UP, Replied(), IN_TIME, HUNG_UP),
    (HUNG_UP, Cancelled(), IN_TIME, HUNG_UP),
    (HUNG_UP, Disconnected(), IN_TIME, HUNG_UP),
    (HUNG_UP, BROKE, IN_TIME, Killed(50.0, Why.BROKE, "noise", "protocol_violation")),
    (HUNG_UP, CONDEMNED, IN_TIME, Killed(50.0, Why.CONDEMNED, "it filled work_dir", "work_dir_quota")),
    (HUNG_UP, Reported(LEFT), IN_TIME, Over(Ended(LEFT))),
    (HUNG_UP, Reported(STOPPED), IN_TIME, Over(Ended(STOPPED))),
    (HUNG_UP, Reported(STOPPED), LATE, Over(Ended(STOPPED, Why.OVERDUE))),
    (HUNG_UP, SandboxEnded(), IN_TIME, Over(Ended(Gone()))),
    (OVERDUE, Replied(), LATE, OVERDUE),
    (OVERDUE, Cancelled(), LATE, OVERDUE),
    (OVERDUE, Disconnected(), LATE, OVERDUE),
    (OVERDUE, BROKE, LATE, OVERDUE),
    (OVERDUE, CONDEMNED, LATE, OVERDUE),
    (OVERDUE, Reported(STOPPED), LATE, Over(Ended(STOPPED, Why.OVERDUE))),
    (OVERDUE, Reported(LEFT), IN_TIME, Over(Ended(LEFT, Why.OVERDUE))),
    (OVERDUE, SandboxEnded(), LATE, Over(Ended(Gone(), Why.OVERDUE))),
    (BROKEN, Reported(STOPPED), LATE, Over(Ended(STOPPED, Why.BROKE, BROKEN.detail, "protocol_violation"))),
    (BROKEN, SandboxEnded(), LATE, Over(Ended(Gone(), Why.BROKE, BROKEN.detail, "protocol_violation"))),
    *(
        (over, event, LATE, over)
        for over, event in itertools.product(
            (ANSWERED, ENDED),
            (Replied(), Cancelled(), Disconnected(), BROKE, CONDEMNED, Reported(STOPPED), SandboxEnded()),
        )
    ),
]


def name(row: Row) -> str:
    state, event, now, _ = row
    return f"{type(state).__name__} {type(event).__name__} {'late' if now >= DEADLINE else 'in time'}"


@pytest.mark.parametrize("row", ROWS, ids=map(name, ROWS))
def test_the_state_after_an_event(row: Row) -> None:
    state, event, now, after = row
    assert advance(state, event, Moment(now, DEADLINE)) == after


def test_every_state_is_tried_with_every_event() -> None:
    tried = {(type(state), type(event)) for state, event, _, _ in ROWS}
    assert tried == set(itertools.product(typing.get_args(State), typing.get_args(Event)))


def test_a_clock_that_stands_still_stops_nothing_for_its_time() -> None:
    held = Moment(LATE, math.inf)
    assert advance(RUNNING, Reported(STOPPED), held) == Over(Ended(STOPPED))
    assert lapse(INTERRUPTED, held) == Killed(LATE, Why.DEAF)
    assert due(RUNNING, math.inf, LIMITS) == math.inf
    assert due(INTERRUPTED, math.inf, LIMITS) == pytest.approx(40.0 + GRACE * MAX_GRACES + KILL_MARGIN)


# -- time that passes -------------------------------------------------------------------------------------------------

LAST = DEADLINE + 0.2 + 0.5 * MAX_GRACES + KILL_MARGIN
DUE: list[tuple[State, float]] = [
    (RUNNING, LAST),
    (INTERRUPTED, 40.0 + GRACE * MAX_GRACES + KILL_MARGIN),
    (Interrupted(DEADLINE, GRACE), DEADLINE + GRACE * MAX_GRACES + KILL_MARGIN),
    (Interrupted(LAST, GRACE), LAST),
    (HungUp(40.0), 40.0 + HANG_UP_GRACE),
    (HungUp(LAST - 1.0), LAST),
    (HungUp(LAST), LAST + LATE_HANG_UP_GRACE),
    (Killed(40.0, Why.DEAF), 40.0 + END_GRACE),
    (Killed(LAST, Why.OVERDUE), LAST + LATE_END_GRACE),
    (Killed(40.0, Why.CONDEMNED, "x"), 40.0 + END_GRACE),
    (Killed(LAST - 0.1, Why.CONDEMNED, "x"), LAST - 0.1 + LATE_END_GRACE),
    (ANSWERED, math.inf),
    (ENDED, math.inf),
]


@pytest.mark.parametrize(("state", "moment"), DUE, ids=repr)
def test_when_the_next_step_is_due(state: State, moment: float) -> None:
    assert due(state, DEADLINE, LIMITS) == pytest.approx(moment)


LAPSES: list[tuple[State, float, State]] = [
    # in this state, nothing happened until now, and this is the next state
    (RUNNING, LATE, Killed(100.0, Why.OVERDUE)),
    (Interrupted(40.0), IN_TIME, Killed(50.0, Why.DEAF)),
    (Interrupted(99.9), LATE, Killed(100.0, Why.OVERDUE)),
    (HungUp(40.0), IN_TIME, Killed(50.0, Why.CLOSED)),
    (HungUp(40.0), LATE, Killed(100.0, Why.CLOSED)),
    (Killed(40.0, Why.DEAF), IN_TIME, Over(Ended(Silent(), Why.DEAF))),
    (Killed(40.0, Why.OVERDUE), LATE, Over(Ended(Silent(), Why.OVERDUE))),
    (BROKEN, IN_TIME, Over(Ended(Silent(), Why.BROKE, BROKEN.detail, "protocol_violation"))),
    (
        Killed(40.0, Why.CONDEMNED, "x", "work_dir_quota"),
        IN_TIME,
        Over(Ended(Silent(), Why.CONDEMNED, "x", "work_dir_quota")),
    ),
    (ANSWERED, LATE, ANSWERED),
    (ENDED, LATE, ENDED),
]


@pytest.mark.parametrize(("state", "now", "after"), LAPSES, ids=repr)
def test_the_state_after_nothing_has_happened(state: State, now: float, after: State) -> None:
    assert lapse(state, Moment(now, DEADLINE)) == after


def test_every_state_is_tried_with_time_that_passes() -> None:
    assert {type(state) for state, _, _ in LAPSES} == {type(state) for state, _ in DUE} == set(typing.get_args(State))


ORDERS: list[tuple[State, Order | None]] = [
    (RUNNING, None),
    (INTERRUPTED, Interrupt(kill=GRACE)),
    (HUNG_UP, None),
    (Killed(1.0, Why.OVERDUE), Kill()),
    (Killed(1.0, Why.DEAF), Kill()),
    (Killed(1.0, Why.CLOSED), Kill()),
    (Killed(1.0, Why.BROKE), Kill()),
    (Killed(1.0, Why.CONDEMNED), None),
    (ANSWERED, None),
    (ENDED, None),
]


@pytest.mark.parametrize(("state", "order"), ORDERS, ids=repr)
def test_the_order_on_entering_a_state(state: State, order: Order | None) -> None:
    assert order_on_entering(state) == order


def test_every_reason_to_kill_is_tried() -> None:
    assert {state.why for state, _ in ORDERS if isinstance(state, Killed)} == set(Why)


# -- whole stories ----------------------------------------------------------------------------------------------------

STATES = st.sampled_from([RUNNING, INTERRUPTED, HUNG_UP, OVERDUE, BROKEN, ANSWERED, ENDED])
EVENTS = st.sampled_from(
    [Replied(), Cancelled(), Disconnected(), BROKE, CONDEMNED, Reported(LEFT), Reported(STOPPED), SandboxEnded(), None]
)


@given(st.lists(st.tuples(EVENTS, st.floats(0, 10)), max_size=20))
def test_there_is_no_way_back_and_whatever_happens_the_run_ends_soon_after_its_time(
    story: list[tuple[Event | None, float]],
) -> None:
    order = [Running, Interrupted, HungUp, Killed, Over]
    state: State = Running()
    now = 0.0
    for event, seconds in story:
        if not isinstance(state, Over):  # after which time does not matter
            now = min(now + seconds, due(state, DEADLINE, LIMITS))
        after = lapse(state, Moment(now, DEADLINE)) if event is None else advance(state, event, Moment(now, DEADLINE))
        assert order.index(type(after)) >= order.index(type(state))
        assert after == state or type(after) is not type(state)
        state = after
    while not isinstance(state, Over):
        now = max(now, due(state, DEADLINE, LIMITS))
        state = lapse(state, Moment(now, DEADLINE))
    assert now <= LAST + LATE_HANG_UP_GRACE + END_GRACE + 0.001


@given(STATES, st.floats(0, 200), st.floats(0, 200))
def test_a_later_deadline_never_makes_a_step_due_earlier(state: State, first: float, second: float) -> None:
    early, late = sorted((first, second))
    assert due(state, early, LIMITS) <= due(state, late, LIMITS)
