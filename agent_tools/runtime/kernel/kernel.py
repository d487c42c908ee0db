"""One IPython process in a sandbox: runs code under a deadline that holds whatever the code does.

The time limit comes in three steps: the countdown inside the kernel interrupts the cell; `interrupt_grace` later PID 1
sends SIGINT, which also ends C calls that poll for signals; `kill_grace` later PID 1 kills the kernel and all it
started. PID 1 is armed with these before the code runs, so they hold while nobody reads the outputs; the host repeats
the last step, and then gives the sandbox up. A run is over at the shell reply plus iopub idle (or `idle_grace` after
the reply), at the kernel's end, or at the end of the sandbox; each of these is an event, so nothing is ever waited for
without a deadline.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from agent_tools.execution import Cause, Died, Error, Output, TimedOut
from agent_tools.runtime.kernel.channels import Broken, Channels, Disconnected, Event, FromIopub, FromShell, Words
from agent_tools.runtime.kernel.protocol import Message, outputs_of, read_error
from agent_tools.runtime.transport.exits import KILLED, describe_exit
from agent_tools.runtime.transport.lifeline import Link
from agent_tools.settings import Limits

KILL_MARGIN = 0.1  # seconds the host leaves PID 1 before it orders the kill itself
CANCEL_SECONDS = 0.2  # how often a run looks whether it was cancelled, and what happened beside it
END_GRACE = 1.0  # seconds for PID 1 to report a kernel it was told to kill, or one whose sockets went away
DEAF = "its code did not stop when it was interrupted"
_INTERRUPTIONS = frozenset({"KeyboardInterrupt", "CancelledError"})
Beside = Callable[[], Iterable[Output]]


@dataclass
class _Run:
    """What is known of the request that is running."""

    request_id: str
    timeout: float
    started: float = field(default_factory=time.monotonic)
    status: str = ""
    replied: float = 0.0
    is_idle: bool = False
    errors: list[Error] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)
    interrupted: float = 0.0
    killed: float = 0.0
    kill_reason: str = ""
    hung_up: float = 0.0
    ended: str = ""
    held: float = 0.0
    held_since: float = 0.0

    @property
    def deadline(self) -> float:
        standing = time.monotonic() - self.held_since if self.held_since else 0.0
        return self.started + self.timeout + self.held + standing

    @property
    def was_interrupted_in_time(self) -> bool:
        """Whether the reply is what the countdown makes of a cell, and came after the time limit."""
        return self.replied >= self.deadline and bool(self.errors) and self.errors[-1].name in _INTERRUPTIONS


class Kernel:
    """A ready kernel. `execute` is for one thread at a time; `interrupt` and `kill` are for any."""

    def __init__(self, channels: Channels, link: Link, limits: Limits, memory: int) -> None:
        self._channels = channels
        self._link = link
        self._limits = limits
        self._memory = memory
        self._condemned = ""
        self._cause: Cause = ""
        self._run: _Run | None = None
        self._holds = 0
        self._lock = threading.Lock()
        self.end_reason = ""
        """Why the kernel ended; '' while it lives."""
        self.sandbox_ended = False
        """Whether the whole sandbox went with it, or no longer answers."""

    def is_alive(self) -> bool:
        """Whether the kernel still runs, as far as PID 1 has said; drops what arrived between calls."""
        if not self.end_reason:
            for event in self._channels.discard():
                self._note_end(event)
        return not self.end_reason

    def execute(
        self,
        code: str,
        timeout: float,
        cancelled: threading.Event | None = None,
        *,
        is_silent: bool = False,
        beside: Beside = tuple,
    ) -> Iterator[Output]:
        """Run code, yielding outputs as they come; the last ones say how it ended if it did not end by itself.

        What `beside` gives happened meanwhile and is yielded in its place: it is asked before each output, and at
        least every CANCEL_SECONDS.

        Closing the iterator early interrupts the code, and so does setting `cancelled`; code that goes on is killed.
        """
        self._arm(timeout)
        request_id = self._channels.send_execute(code, timeout, is_silent=is_silent)
        run = self._run = _Run(request_id, timeout, cancelled=cancelled or threading.Event())
        try:
            yield from self._outputs(run, beside)
            yield from self._ending(run)
        finally:
            if not self._is_over(run):
                self._stop(run)
            self._run = None
            self._link.send("disarm")

    def hold(self) -> None:
        """Let the run's time limit stand still, until as many `go` have come."""
        with self._lock:
            self._holds += 1
            if self._holds == 1 and (run := self._run):
                run.held_since = time.monotonic()
                self._link.send("disarm")

    def go(self) -> None:
        """Let the run's time limit go on."""
        with self._lock:
            self._holds -= 1
            if self._holds == 0 and (run := self._run) and run.held_since:
                now = time.monotonic()
                run.held, run.held_since = run.held + now - run.held_since, 0.0
                self._arm(run.deadline - now)

    def _arm(self, timeout: float) -> None:
        """Have PID 1 interrupt and then kill what still runs after `timeout` seconds and the graces."""
        self._link.send(f"arm {timeout + self._limits.interrupt_grace:.3f} {self._limits.kill_grace:.3f}")

    def interrupt(self) -> None:
        """Interrupt what is running, as Ctrl-C would; harmless when nothing is."""
        self._link.send("interrupt")

    def cancel(self) -> None:
        """Interrupt the run that goes on, unless it was already; what does not end then is killed."""
        with self._lock:
            run = self._run
            if run is None or run.interrupted:
                return
            run.interrupted = time.monotonic()
        self.interrupt()

    def kill(self, reason: str = "", cause: Cause = "") -> None:
        """End the kernel and everything it started. The reason and the cause, if any, are told with its end."""
        self._condemned = self._condemned or reason
        self._cause = self._cause or cause
        self._link.send("kill")

    def end(self) -> None:
        """Kill the kernel and wait until PID 1 has said that it is gone. For the thread whose turn it is."""
        deadline = time.monotonic() + END_GRACE
        if not self.end_reason:
            self.kill()
        while not self.end_reason and time.monotonic() < deadline:
            for event in self._channels.receive(deadline - time.monotonic()):
                if isinstance(event, Words):
                    self._note_end(event)
        if not self.end_reason:
            self.sandbox_ended, self.end_reason = True, "the sandbox stopped answering"

    def close(self) -> None:
        """Close the sockets."""
        self._channels.close()

    def _outputs(self, run: _Run, beside: Beside = tuple) -> Iterator[Output]:
        while not self._is_over(run):
            self._escalate(run)
            for event in self._channels.receive(self._patience(run)):
                for output in self._take(event, run):
                    yield from beside()
                    yield output
                self._escalate(run)
            yield from beside()

    def _take(self, event: Event, run: _Run) -> Iterator[Output]:
        match event:
            case FromIopub(message) if message.parent_id == run.request_id:
                yield from self._take_output(message, run)
            case FromShell(Message(kind="execute_reply") as message) if message.parent_id == run.request_id:
                self._take_reply(message, run)
            case Broken(reason):
                self._cause = self._cause or "protocol_violation"
                self._kill(run, f"it sent {reason}")
            case Disconnected():
                run.hung_up = run.hung_up or time.monotonic()
            case Words():
                self._note_end(event)

    def _take_output(self, message: Message, run: _Run) -> Iterator[Output]:
        if message.kind == "status":
            run.is_idle = run.is_idle or message.content.get("execution_state") == "idle"
        for output in outputs_of(message, self._limits):
            if isinstance(output, Error):
                run.errors[:] = [output]  # how it ended is told once, at the end
            else:
                yield output

    def _take_reply(self, message: Message, run: _Run) -> None:
        run.replied = run.replied or time.monotonic()
        run.status = "ok" if message.content.get("status") == "ok" else "error"
        if run.status == "error" and not run.errors:
            run.errors.append(read_error(message.content, self._limits))

    def _escalate(self, run: _Run) -> None:
        """Take the next step against code that should have ended, and against a guest that no longer answers."""
        now = time.monotonic()
        if run.killed:
            if now >= run.killed + END_GRACE:
                self.sandbox_ended, self.end_reason = True, "the sandbox stopped answering"
        elif run.hung_up and now >= run.hung_up + END_GRACE / 2:
            self._kill(run, "it closed its channels")
        elif run.replied:
            return
        elif now >= self._last_moment(run):
            self._kill(run, DEAF if run.interrupted and now < run.deadline else "")
        elif run.cancelled.is_set():
            self.cancel()

    def _last_moment(self, run: _Run) -> float:
        """When code that did not stop is killed from here; PID 1 does it a little earlier by itself."""
        limits = self._limits
        armed = run.deadline + limits.interrupt_grace + limits.kill_grace + KILL_MARGIN
        return min(armed, run.interrupted + limits.kill_grace) if run.interrupted else armed

    def _kill(self, run: _Run, reason: str) -> None:
        if not run.killed:
            run.killed, run.kill_reason = time.monotonic(), reason
            self.kill()

    def _patience(self, run: _Run) -> float:
        """Seconds until the next step is due."""
        limits = self._limits
        if run.killed:
            due = run.killed + END_GRACE
        elif run.hung_up:
            due = run.hung_up + END_GRACE / 2
        elif run.replied:
            due = run.replied + limits.idle_grace
        elif run.interrupted:
            due = self._last_moment(run)
        else:
            due = min(self._last_moment(run), time.monotonic() + CANCEL_SECONDS)
        return max(0.0, due - time.monotonic())

    def _is_over(self, run: _Run) -> bool:
        if self.end_reason:
            return True
        if not run.replied or run.killed or run.hung_up:
            return False
        return run.is_idle or time.monotonic() >= run.replied + self._limits.idle_grace

    def _ending(self, run: _Run) -> Iterator[Output]:
        """How the run ended, if not by itself."""
        if self.end_reason:
            if reason := run.kill_reason or self._condemned:
                self.end_reason = reason
                yield Died(reason, self._cause)
            elif run.killed or (self._was_killed and time.monotonic() >= run.deadline):
                self.end_reason = "its code did not stop at the time limit"
                yield TimedOut(run.timeout, state_kept=False)
            else:
                yield Died(self.end_reason)
        elif run.was_interrupted_in_time:
            yield TimedOut(run.timeout, state_kept=True, where=run.errors[-1].traceback)
        else:
            yield from run.errors[-1:]

    def _stop(self, run: _Run) -> None:
        """Bring a run that nobody reads any more to its end: interrupt, then kill."""
        self.cancel()
        for _ in self._outputs(run):
            pass
        if run.killed:
            self.end_reason = run.kill_reason or DEAF

    @property
    def _was_killed(self) -> bool:
        return self.end_reason == describe_exit(KILLED, self._memory)

    def _note_end(self, event: Event) -> None:
        if self.end_reason:
            return
        match event:
            case Words(["exit", _, how]):
                self.end_reason = self._condemned or describe_exit(how, self._memory)
            case Words([]):
                self.end_reason, self.sandbox_ended = "the sandbox ended", True
            case Broken(reason):
                self.kill()
                self.end_reason = f"it sent {reason}"
            case Disconnected():
                self.end()
