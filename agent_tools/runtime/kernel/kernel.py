"""One IPython process in a sandbox: runs code under a time limit that the code cannot evade.

The time limit comes in three steps: the countdown inside the kernel interrupts the cell; `interrupt_grace` later PID 1
sends SIGINT, which also ends C calls that poll for signals; when the kernel has used `kill_grace` of processor time
after that, or after three times as long, PID 1 kills it and all it started. The host repeats the kill, and then removes
the sandbox. escalation.py has the states of a run; this file passes events to them, and carries out their orders.

PID 1 is armed once a run has lasted for ARM_SECONDS, or before the caller gets an output of an unfinished run, so that
the limit works while the host is stopped or the caller does not read. Arming every run would wake PID 1 twice in a run,
a quarter of a warm call (`print(1)` in `benchmarks/latency.py`).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field

from agent_tools.guest.wire.messages import IOPUB, SHELL
from agent_tools.guest.wire.words import Exit, Interrupt, Kill, Mark, Marked, Printed
from agent_tools.limits import Limits
from agent_tools.results.execution import Cause, Died, Error, Notice, Output, Stream, TimedOut
from agent_tools.runtime.kernel import escalation
from agent_tools.runtime.kernel.channel import Arrived, Event, KernelChannel
from agent_tools.runtime.kernel.end_words import describe
from agent_tools.runtime.kernel.escalation import (
    Answer,
    Broken,
    Disconnected,
    Ended,
    Gone,
    Moment,
    Over,
    Reported,
    SandboxEnded,
    Silent,
    Why,
)
from agent_tools.runtime.kernel.output_limits import BackgroundText
from agent_tools.runtime.kernel.protocol import KernelMessage, outputs_of, read_error, read_still_running, streams
from agent_tools.runtime.kernel.run_numbers import RunKind, RunNumbers
from agent_tools.runtime.transport.lifeline import Lifeline

CANCEL_SECONDS = 0.2  # seconds between two checks whether a run was cancelled, and for events beside it
BETWEEN_SECONDS = 0.25  # seconds for which text of background code is read before a run starts anyway
ARM_SECONDS = 0.1  # seconds of a run after which PID 1 is armed with its time limit
FINISH_SECONDS = 2.0  # seconds for exit functions and buffered files at the end of a kernel that runs nothing
LONGEST_LIMIT = 1e6  # seconds: the limit that PID 1 gets while the time limit is paused
_INTERRUPTIONS = frozenset({"KeyboardInterrupt", "CancelledError"})
CAUGHT = "the code was interrupted; it caught this and went on to its end"
Beside = Callable[[], Iterable[Output]]
Ask = Callable[[int], object]
"""Sends PID 1 an order that it answers with `Marked`."""


class Kernel:
    """A ready kernel. Call it with the session's lock; `hold`, `go`, `interrupt`, `cancel` and `kill` need none."""

    def __init__(
        self,
        channel: KernelChannel,
        lifeline: Lifeline,
        limits: Limits,
        memory: int,
        runs: RunNumbers | None = None,
        background: BackgroundText | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.channel = channel
        self.lifeline = lifeline
        self._limits = limits
        self._memory = memory
        self.runs = runs  # None: no checkpoints
        self.background = background or BackgroundText(limits)
        self._clock = clock  # clock of the runs' time limits and grace periods
        self._condemned: escalation.Condemned | None = None
        self._ended: Ended | None = None
        self._run: RunningRequest | None = None
        self._approvals = 0  # pending approvals: the time limit continues when the last one is answered
        self._lock = threading.RLock()  # guards the run's state and its time limit

    @property
    def end_reason(self) -> str:
        """Why the kernel ended, as a clause; '' while it lives."""
        return describe(self._ended, self._memory, self.lifeline.lost) if self._ended else ""

    def is_alive(self) -> bool:
        """Return True unless PID 1 has reported the kernel's end. Also processes events that arrived between calls."""
        deadline = time.monotonic() + BETWEEN_SECONDS
        while not self._ended and time.monotonic() < deadline and (events := list(self.channel.receive(0))):
            events.sort(key=lambda each: isinstance(each, Disconnected))  # last: a report of the end says more
            for event in events:
                self.note(event)
        return not self._ended

    def execute(
        self,
        code: str,
        timeout: float,
        cancelled: threading.Event | None = None,
        *,
        kind: RunKind = "cell",
        beside: Beside = tuple,
    ) -> Generator[Output, None, None]:
        """Run code, yielding outputs as they come; the last ones say how it ended if it did not end by itself.

        Before these, a cell yields a note of what background code has printed since the previous one.

        `beside` returns other outputs, such as finished host calls, which are yielded in order: it is called before
        each output, and at least every CANCEL_SECONDS.

        Closing the generator early, or setting `cancelled`, interrupts the code; code that does not stop is killed.
        """
        number = self.runs.begin(is_cell=kind != "definition") if self.runs else 0
        limit = RunTimeLimit(timeout, self._clock)  # before it is sent: the kernel's limit is not the earlier one
        run = RunningRequest(limit, cancelled or threading.Event(), self._clock())
        with self._lock:
            self._run = run
            if self._approvals:  # of background code
                limit.hold()
        try:
            run.request_id = self.channel.send_execute(
                code, timeout, is_silent=kind != "cell", run=number, goes_on=lambda: self._goes_on(run)
            )
            yield from self._outputs(run, beside)
            if kind == "cell":
                yield from self.background.take_notices()
                if run.still_running:
                    yield run.still_running
            yield from self._last_outputs(run)
        finally:
            if not run.is_over:
                self._stop(run)
            with self._lock:
                self._run = None
                self.lifeline.disarm()

    def hold(self) -> None:
        """Pause the run's time limit, until `go` was called as often."""
        with self._lock:
            self._approvals += 1
            if self._approvals == 1 and (run := self._run):
                run.limit.hold()
                self.lifeline.disarm()

    def go(self) -> None:
        """Continue the run's time limit."""
        with self._lock:
            self._approvals -= 1
            if self._approvals == 0 and (run := self._run):
                self._arm(run.limit.go())

    def interrupt(self) -> None:
        """Interrupt the code that runs, as Ctrl-C would; do nothing when there is none."""
        with self._lock:
            if self._run:
                self._run.was_interrupted = True
                self._ensure_armed(self._run, even_paused=True)
        self.lifeline.send(Interrupt())

    def cancel(self, cancelled: threading.Event) -> None:
        """Interrupt the run with this event, unless it was interrupted already; code that does not stop is killed."""
        with self._lock:
            if self._run and self._run.cancelled is cancelled:
                self._advance(self._run, escalation.Cancelled(self._limits.cancel_grace))

    def kill(self, reason: str = "", cause: Cause = "") -> None:
        """End the kernel and everything it started. The reason and the cause, if any, are reported with its end."""
        with self._lock:
            if reason and not self._condemned:
                self._condemned = escalation.Condemned(reason, cause)
            if not self._ended:  # else it would reach the kernel that follows
                self.lifeline.send(Kill())
            if self._condemned and self._run:
                self._advance(self._run, self._condemned)

    def finish(self) -> None:
        """Let a kernel that runs nothing, and is killed next, finish as a program does: finish.py of the guest."""
        if not self._ended:
            self._await_reply(self.channel.send_shutdown(), time.monotonic() + FINISH_SECONDS)

    def end(self, grace: float = escalation.END_GRACE) -> bool:
        """Kill the kernel and wait until PID 1 reports its end; return whether it did, or the sandbox ended.

        `grace` is in seconds.
        """
        deadline = time.monotonic() + grace
        if not self._ended:
            self.kill()
        while not self._ended and time.monotonic() < deadline:
            for event in self.channel.receive(deadline - time.monotonic()):
                if isinstance(event, (Reported, SandboxEnded)):
                    self.note(event)
        if not self._ended:
            self._note_ended(Ended(Silent()))
        return not (self._ended and isinstance(self._ended.how, Silent))

    def abandon(self, reason: str) -> None:
        """Mark the kernel as ended for this reason: another one replaces it, whose channel received its end."""
        self.kill(reason)
        self._note_ended(Ended(None))

    def mark(self, seconds: float, ask: Ask | None = None) -> int:
        """Let PID 1 keep a checkpoint of the present state; return its run, 0 if none could be taken.

        With `ask` it is not kept: `ask` then orders another action on the checkpoint of a run, if there is one.
        """
        ask = ask or (lambda run: self.lifeline.send(Mark(run)))
        assert self.runs
        deadline = time.monotonic() + seconds
        self.settle(seconds)
        if not (run := self._asked(ask, self.runs.latest, deadline)):
            run = self.runs.begin(is_cell=False)
            self._settle(deadline, run)
            self._settle(deadline)
            run = self._asked(ask, run, deadline)
        return run

    def settle(self, seconds: float) -> None:
        """Wait until the checkpoint after the latest run is taken, if it is."""
        if self.runs:
            self._settle(time.monotonic() + seconds)

    def _settle(self, deadline: float, run: int = 0) -> None:
        """Wait for an answer to an empty request, after which the pending checkpoint has been taken."""
        self._await_reply(self.channel.send_execute("", 0, is_silent=True, run=run, is_urgent=True), deadline)

    def _await_reply(self, request: str, deadline: float) -> None:
        while not self._ended and time.monotonic() < deadline:
            for event in self.channel.receive(deadline - time.monotonic()):
                self.note(event)
                if isinstance(event, Arrived) and event.message.parent_id == request and event.message.channel == SHELL:
                    return

    def _asked(self, ask: Ask, run: int, deadline: float) -> int:
        """Send an order about the checkpoint of a run; return the run, 0 if it has no checkpoint."""
        ask(run)
        while not self._ended and time.monotonic() < deadline:
            for event in self.channel.receive(deadline - time.monotonic()):
                self.note(event)
                if isinstance(event, Reported) and isinstance(event.report, Marked) and event.report.run in (0, run):
                    return event.report.run  # of another run, it would be a late answer
        return 0

    def close(self) -> None:
        """Hang up."""
        self.channel.close()

    def _arm(self, timeout: float) -> None:
        """Order PID 1 to interrupt and then kill code that still runs after `timeout` seconds and the graces."""
        self.lifeline.arm(timeout + self._limits.interrupt_grace, self._limits.kill_grace)

    def _ensure_armed(self, run: RunningRequest, *, even_paused: bool = False) -> None:
        """Arm PID 1 with what is left of the run's time, unless it is armed or the time limit stands still."""
        with self._lock:
            if not self.lifeline.is_armed and not run.is_over and (even_paused or not self._approvals):
                self._arm(min(LONGEST_LIMIT, max(0.0, run.limit.deadline - self._clock())))

    def _outputs(self, run: RunningRequest, beside: Beside = tuple) -> Iterator[Output]:
        """Serve the run to its end, yielding its outputs."""
        while not run.is_over:
            self._look_after(run)
            outputs: list[Output] = []
            is_silent = True
            for event in self.channel.receive(self._timeout(run)):
                is_silent = False
                outputs += self._take(event, run)
                self._look_after(run)
                if run.is_over:  # messages after the reply are background code's, which the next run notes
                    break
            if is_silent:
                run.was_away = False
            read_at = self._clock()
            for output in _interleaved(outputs, beside):
                self._ensure_armed(run)
                yield output
            run.was_away |= read_at < run.limit.deadline <= self._clock()

    def _look_after(self, run: RunningRequest) -> None:
        """Take the next step against code that should have ended, or a guest that does not answer."""
        with self._lock:
            # No descriptor tells of a cancelled run, so it is looked for at least every CANCEL_SECONDS.
            if run.cancelled.is_set():
                self._advance(run, escalation.Cancelled(self._limits.cancel_grace))
            moment = Moment(self._clock(), run.limit.deadline)
            if moment.now >= run.started + ARM_SECONDS:
                self._ensure_armed(run)
            if moment.now >= escalation.due(run.state, moment.deadline, self._limits):
                self._enter(run, escalation.lapse(run.state, moment))

    def _goes_on(self, run: RunningRequest) -> bool:
        """Return whether a request is to be sent further: its time limit runs, and it can be cancelled."""
        self._look_after(run)
        return not isinstance(run.state, (escalation.Killed, Over))

    def _timeout(self, run: RunningRequest) -> float:
        """Return the seconds until the next check of the run."""
        due = escalation.due(run.state, run.limit.deadline, self._limits) - self._clock()
        return min(due, CANCEL_SECONDS if self.lifeline.is_armed else ARM_SECONDS)

    def _advance(self, run: RunningRequest, event: escalation.Event) -> None:
        with self._lock:
            self._enter(run, escalation.advance(run.state, event, Moment(self._clock(), run.limit.deadline)))

    def _enter(self, run: RunningRequest, state: escalation.State) -> None:
        if state is run.state:
            return
        run.state = state
        if order := escalation.order_on_entering(state):
            if isinstance(order, Interrupt):
                run.was_interrupted = True
                self._ensure_armed(run, even_paused=True)  # PID 1 interrupts only a run that is armed
            self.lifeline.send(order)
        if isinstance(state, Over) and isinstance(state.ending, Ended):
            self._note_ended(state.ending)

    def _take(self, event: Event, run: RunningRequest) -> Iterator[Output]:
        match event:
            case Arrived(message, _) if message.parent_id == run.request_id:
                yield from self._take_message(message, run)
            case Arrived():
                self.note(event)
            case Reported(Printed(_, name, text)):
                yield from streams(name, text)
            case _:
                self._advance(run, event)

    def _take_message(self, message: KernelMessage, run: RunningRequest) -> Iterator[Output]:
        if message.channel == SHELL and message.kind == "execute_reply":
            if message.content.get("status") != "ok" and not run.error:
                run.error = read_error(message.content)
            run.still_running = read_still_running(message.content)
            self._advance(run, escalation.Replied())
        elif message.channel == IOPUB:
            for output in outputs_of(message, self._limits):
                if isinstance(output, Error):
                    if run.error and run.error.traceback:
                        yield Stream("stderr", f"{run.error.traceback}\n")
                    run.error = output  # the end is reported once, at the end
                else:
                    yield output

    def _last_outputs(self, run: RunningRequest) -> Iterator[Output]:
        """Yield an output for the end of the run, if it did not end by itself, whatever its reply says."""
        match run.state:
            case Over(Answer(at)) if at >= run.limit.deadline and (not run.was_away or run.is_interrupted):
                yield TimedOut(run.limit.timeout, state_kept=True, where=run.error.text if run.error else "")
            case Over(Answer()) if run.error:
                yield run.error
            case Over(Answer()) if run.was_interrupted and not run.was_away:
                yield Error("KeyboardInterrupt", CAUGHT, "")
            case Over(Ended(why=Why.OVERDUE)):
                yield TimedOut(run.limit.timeout, state_kept=False)
            case Over(Ended()) if self._ended:
                yield Died(self.end_reason, self._ended.cause)

    def _stop(self, run: RunningRequest) -> None:
        """End a run that has no reader any more: interrupt, then kill."""
        self.cancel(run.cancelled)
        for _ in self._outputs(run):
            pass

    def note(self, event: Event) -> None:
        """Record an event that belongs to no run: text of background code, or the end of the kernel."""
        match event:
            case Arrived(message, _) if message.channel == IOPUB:
                self.background.add(outputs_of(message, self._limits))
            case Reported(Printed(_, name, text)):
                self.background.add(streams(name, text))
            case Reported(Exit() as exit_):
                self._note_ended(Ended(exit_))
            case SandboxEnded():
                self._note_ended(Ended(Gone()))
            case Broken(reason):
                self.kill()
                self._note_ended(Ended(None, Why.BROKE, reason))
            case Disconnected():  # as in a run: PID 1 has time to report an end, and then to carry out the order
                self.end(escalation.HANG_UP_GRACE + escalation.END_GRACE)

    def _note_ended(self, ended: Ended) -> None:
        """Record why the kernel ended: a reason given before its end takes precedence over PID 1's report."""
        with self._lock:  # or a kill that has found none could reach the kernel that follows
            if self._ended:
                return
            if self._condemned and ended.why is None:
                ended = Ended(ended.how, Why.CONDEMNED, self._condemned.detail, self._condemned.cause)
            self._ended = ended
        if isinstance(ended.how, Silent):
            self.lifeline.mark_dead()


def _interleaved(outputs: Iterable[Output], beside: Beside) -> Iterator[Output]:
    """Yield outputs, each after the events beside the run that came before it."""
    for output in outputs:
        yield from beside()
        yield output
    yield from beside()


@dataclass(eq=False)
class RunningRequest:
    """One request to the kernel while it is served: its progress, and its last error."""

    limit: RunTimeLimit
    cancelled: threading.Event
    started: float
    request_id: str = ""  # until it is sent
    state: escalation.State = field(default_factory=escalation.Running)
    error: Error | None = None
    was_interrupted: bool = False
    was_away: bool = False
    """The time limit passed while the caller did not read: when the code ended is not known."""
    still_running: Notice | None = None

    @property
    def is_interrupted(self) -> bool:
        """The code ended by an interrupt, as its reply says."""
        return self.error is not None and self.error.name in _INTERRUPTIONS

    @property
    def is_over(self) -> bool:
        """True once it is finished."""
        return isinstance(self.state, escalation.Over)


class RunTimeLimit:
    """A run's time limit: `timeout` seconds from now; it is paused during approvals. Not thread-safe."""

    def __init__(self, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.timeout = timeout
        self._clock = clock
        self._deadline = clock() + timeout
        self._left = 0.0
        self._is_paused = False

    @property
    def deadline(self) -> float:
        """The time when the limit is reached (monotonic seconds); infinity while it is paused."""
        return math.inf if self._is_paused else self._deadline

    def hold(self) -> None:
        """Pause the time limit."""
        self._left, self._is_paused = self._deadline - self._clock(), True

    def go(self) -> float:
        """Continue the time limit; return the seconds left."""
        self._deadline, self._is_paused = self._clock() + self._left, False
        return self._left
