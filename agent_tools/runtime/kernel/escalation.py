"""A state machine for the end of a run: its states, events, and the next step after a time-out.

Theory of operation
    A run has one of five states. It begins as `Running` and is finished when `Over`; it never goes back.

        Running      the code runs, as far as the host knows
        Interrupted  it was ordered to stop, before its time limit
        HungUp       its kernel closed the channel: it has ended, or pretends to
        Killed       the order to kill was sent; PID 1 has not yet reported the end
        Over         with an `Answer`, or because the kernel is gone

    Two things change the state. An event (`Replied`, `Cancelled`, `Disconnected`, `Broken`, `Condemned`,
    `SandboxEnded`, `Reported` with an `Exit`) changes it by the table in `advance`. If nothing happens until `due`,
    `lapse` returns the next state. On entering a state the host may send PID 1 an order: `order_on_entering`.

    The time limit is enforced three times: by the countdown inside the guest, by PID 1, and, a little later, by
    `lapse`. So a kernel that was killed by SIGKILL after its deadline was stopped for its time, whichever was first.

This module has no clock, socket or thread. Times are monotonic seconds.
"""

from __future__ import annotations

import math
import signal
from dataclasses import dataclass
from enum import Enum
from typing import Union

from agent_tools.guest.wire.words import MAX_GRACES, Exit, Interrupt, Kill, Order, Report
from agent_tools.limits import Limits
from agent_tools.results.execution import Cause

KILL_MARGIN = 0.1  # seconds that PID 1 has before the host orders the kill itself
END_GRACE = 5.0  # seconds for PID 1 to report the end of a kernel that it was ordered to kill
LATE_END_GRACE = 0.6  # the same after the time limit, when PID 1 kills it without an order: a call has 3 s to return in
HANG_UP_GRACE = 1.5  # seconds for PID 1 to report the end of a kernel that closed its channel, and what it wrote last
LATE_HANG_UP_GRACE = 0.5  # the same where its code was to be killed before


class Why(Enum):
    """The reason why a kernel is killed."""

    OVERDUE = "its code did not stop at the time limit"
    DEAF = "its code did not stop when it was interrupted"
    CLOSED = "it closed its channel"
    BROKE = "it broke the protocol"
    CONDEMNED = "it was condemned"


@dataclass(frozen=True)
class Gone:
    """The whole sandbox ended with the kernel."""


@dataclass(frozen=True)
class Silent:
    """PID 1 did not carry out an order in time: the sandbox is removed."""


@dataclass(frozen=True)
class Answer:
    """The kernel answered the request."""

    at: float


@dataclass(frozen=True)
class Ended:
    """The kernel is gone: its reported end, or None, and the reason if the host killed it."""

    how: Exit | Gone | Silent | None
    why: Why | None = None
    detail: str = ""
    cause: Cause = ""


@dataclass(frozen=True)
class Running:
    """Nothing has happened yet."""


@dataclass(frozen=True)
class Interrupted:
    """An interrupt was ordered before the time limit; PID 1 kills the kernel after a grace of its processor time."""

    at: float
    grace: float = 0.0


@dataclass(frozen=True)
class HungUp:
    """The kernel closed its channel without an answer."""

    at: float


@dataclass(frozen=True)
class Killed:
    """The kill was ordered. `detail` is a text for the reason."""

    at: float
    why: Why
    detail: str = ""
    cause: Cause = ""


@dataclass(frozen=True)
class Over:
    """The run is finished."""

    ending: Answer | Ended


@dataclass(frozen=True)
class Replied:
    """The kernel sent the reply to the request."""


@dataclass(frozen=True)
class Cancelled:
    """The caller cancelled the run; its code has a grace period, in seconds."""

    grace: float = 0.0


@dataclass(frozen=True)
class Disconnected:
    """The kernel closed its channel: it ended, or is about to."""


@dataclass(frozen=True)
class Broken:
    """The kernel broke the protocol, or a limit. `reason` continues 'it sent'."""

    reason: str


@dataclass(frozen=True)
class Condemned:
    """Another part of the host has ordered the kill: a full work_dir, a restart."""

    detail: str
    cause: Cause = ""


@dataclass(frozen=True)
class Reported:
    """PID 1 sent a report about this kernel."""

    report: Report


@dataclass(frozen=True)
class SandboxEnded:
    """PID 1 closed the lifeline."""


State = Union[Running, Interrupted, HungUp, Killed, Over]
Event = Union[Replied, Cancelled, Disconnected, Broken, Condemned, Reported, SandboxEnded]


@dataclass(frozen=True)
class Moment:
    """The present time, and the time limit (infinity while it is paused)."""

    now: float
    deadline: float


def advance(state: State, event: Event, moment: Moment) -> State:
    """Return the state after an event; it stays the same where the event changes nothing.

    A reply after the kill was ordered, for example, changes nothing: PID 1 carries the order out in any case.
    """
    match state, event:
        case Running() | Interrupted(), Replied():
            return Over(Answer(moment.now))
        case Running(), Cancelled(grace):
            return Interrupted(moment.now, grace)
        case Running() | Interrupted(), Disconnected():
            return HungUp(moment.now)
        case Running() | Interrupted() | HungUp(), Broken(reason):
            return Killed(moment.now, Why.BROKE, reason, "protocol_violation")
        case Running() | Interrupted() | HungUp(), Condemned(detail, cause):
            return Killed(moment.now, Why.CONDEMNED, detail, cause)
        case Running() | Interrupted() | HungUp(), SandboxEnded():
            return Over(Ended(Gone()))
        case Running() | Interrupted() | HungUp(), Reported(Exit() as exit_):
            return Over(Ended(exit_, _why_ended(state, exit_, moment)))
        case Killed(_, why, detail, cause), SandboxEnded():
            return Over(Ended(Gone(), why, detail, cause))
        case Killed(_, why, detail, cause), Reported(Exit() as exit_):
            return Over(Ended(exit_, why, detail, cause))
    return state


def _why_ended(state: State, exit_: Exit, moment: Moment) -> Why | None:
    """Return why PID 1 killed a kernel without an order of the host; None if the kernel ended by itself."""
    if exit_.signal != signal.SIGKILL or exit_.oom:
        return None
    if moment.now >= moment.deadline:
        return Why.OVERDUE
    is_deaf = isinstance(state, Interrupted) and state.at + state.grace <= moment.now
    return Why.DEAF if is_deaf else None


def due(state: State, deadline: float, limits: Limits) -> float:
    """Return the time to call `lapse` if nothing happens until then."""
    last = deadline + limits.interrupt_grace + limits.kill_grace * MAX_GRACES + KILL_MARGIN
    match state:
        case Running():
            return last
        case Interrupted(at, grace):
            return min(last, at + grace * MAX_GRACES + KILL_MARGIN)
        case HungUp(at):
            return min(at + HANG_UP_GRACE, max(last, at + LATE_HANG_UP_GRACE))
        case Killed(at):
            return min(at + END_GRACE, max(last, at + LATE_END_GRACE))
        case Over():
            return math.inf


def lapse(state: State, moment: Moment) -> State:
    """Return the next state if nothing has happened until `due`."""
    match state:
        case Running():
            return Killed(moment.now, Why.OVERDUE)
        case Interrupted():
            return Killed(moment.now, Why.OVERDUE if moment.now >= moment.deadline else Why.DEAF)
        case HungUp():
            return Killed(moment.now, Why.CLOSED)
        case Killed(_, why, detail, cause):
            return Over(Ended(Silent(), why, detail, cause))
        case Over():
            return state


def order_on_entering(state: State) -> Order | None:
    """Return the order that PID 1 gets when a run enters a state."""
    match state:
        case Interrupted(_, grace):
            return Interrupt(kill=grace)
        case Killed(why=why):
            return None if why is Why.CONDEMNED else Kill()  # the part that condemned it has ordered the kill
    return None
