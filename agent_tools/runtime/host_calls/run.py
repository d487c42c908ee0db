"""The host calls of one run: checked against its limits, run in an event loop, answered, and recorded.

Theory of operation
    There are two event loops, which may be the same. The *session's* loop, in its own thread, reads the guest's socket
    and admits or refuses calls (`admits`, `begin`, `cancel`). The calls are tasks of the *caller's* loop, if the run
    was started from one, so that host functions can use their connections and locks.

    A call goes through: admission (counted, or refused with a reason) -> a place (`max_concurrent`, and the function's
    own `concurrency`) -> its arguments, read here when they are small and in a thread beside the loop when they are
    not -> an approval, during which the run's clock stands still -> the function, under its time limit -> room for the
    answer, if the code leaves much unread -> the record, and only then the answer: with it the code goes on, and may
    end the run. The run ends by cancelling the remaining calls, and waits for them at most END_SECONDS.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
import threading
import time
import types
from collections.abc import Coroutine, Generator, Iterator
from typing import Any

from agent_tools.guest.wire.calls import pack
from agent_tools.guest.wire.framing import TooLarge
from agent_tools.guest.wire.values import NotEncodable, encode
from agent_tools.limits import MIB
from agent_tools.results.execution import HostCall, Omitted
from agent_tools.runtime.host_calls.admission import Admission
from agent_tools.runtime.host_calls.failures import called, failure, is_approved
from agent_tools.runtime.host_calls.function import (
    Approve,
    ArgumentError,
    CallRefused,
    CallRequest,
    Clock,
    HostFunction,
    Status,
)
from agent_tools.runtime.host_calls.loop import CallLoop
from agent_tools.runtime.host_calls.preview import preview
from agent_tools.runtime.host_calls.reading import CallReading, IncomingCall
from agent_tools.runtime.host_calls.service import MAX_ERROR_CHARS, CallService
from agent_tools.text import neutralise

MAX_ARGUMENT_BYTES = 256 * MIB  # bytes of the decoded arguments of all running calls; large ones wait for room
MAX_PREVIEW_CHARS = 200  # of a call's arguments, in its record
MAX_REFUSALS = 100  # calls refused in one run that are recorded one by one; the code can make any number of them
END_SECONDS = 1.0  # seconds that the end of a run waits for cancelled calls

_ANYWHERE = contextlib.nullcontext()
callers: contextvars.ContextVar[frozenset[int]] = contextvars.ContextVar("callers", default=frozenset())
"""The sessions for whose calls this task or thread works."""


class CallRun:
    """The calls of one run. `_refuse` and `_note` run in either loop, all other private methods in the caller's."""

    def __init__(
        self, service: CallService, callers: asyncio.AbstractEventLoop | None, clock: Clock, own: CallLoop
    ) -> None:
        self._service = service
        self._wire = service.wire  # the next kernel has another, and numbers its calls from 1 again
        self._callers = callers
        self._own = own
        self._limits = service.limits
        self._admission = Admission(service.functions, service.limits)
        self._reading = CallReading(service.rich, own.reading, MAX_ARGUMENT_BYTES)
        self._clock = clock
        self._started = time.monotonic()
        self._lock = threading.Lock()  # guards the records, which both loops write and the run's thread reads
        self._over: list[HostCall] = []
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._places: dict[str, asyncio.Semaphore] = {}
        self._refused = 0
        self._approvals = 0  # pending approvals
        self._holds_clock = False
        self.has_ended = False

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """The loop that runs the calls. The session's own loop starts with the first call."""
        return self._callers or self._own.loop

    def admits(self, number: int, name: str, size: int) -> bool:
        """Return whether a call may be made, before it is read; if not, answer it. In the session's loop."""
        try:
            self._admission.check(name)
        except CallRefused as refusal:
            self._refuse(IncomingCall(number, name, [], {}, [], size, time.monotonic()), refusal)
            return False
        return True

    def begin(self, call: IncomingCall) -> None:
        """Start a call, or refuse it. In the session's loop."""
        call.begun = time.monotonic()
        try:
            self._admission.begin(call.name, call.size)
        except CallRefused as refusal:
            self._refuse(call, refusal)
            return
        self._service.set_reading(not self._admission.is_full)
        call.preview = preview(call.args, call.kwargs, MAX_PREVIEW_CHARS)
        if self._callers is None:
            self._start(call)
            return
        try:
            self._loop.call_soon_threadsafe(self._start, call)
        except RuntimeError:  # the loop is closed
            self._end_as_cancelled(call)

    def cancel(self, number: int) -> None:
        """Cancel a call whose answer the guest does not need any more."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._cancel, number)

    def take_over(self) -> list[HostCall | Omitted]:
        """Return the ended calls since the last call, and after the run's end how many were left out."""
        with self._lock:
            over, self._over = list[HostCall | Omitted](self._over), []
        if self.has_ended and self._refused > MAX_REFUSALS:
            over.append(Omitted(f"{self._refused - MAX_REFUSALS:,} host calls that were refused"))
        return over

    def end(self) -> None:
        """Cancel pending calls and wait a short time for them."""
        self.has_ended = True
        self._reading.cancel_decoding()
        self._service.set_reading(True)
        if not self._admission.open:
            return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._cancel_all)
        deadline = time.monotonic() + END_SECONDS
        while self._admission.open and time.monotonic() < deadline:
            time.sleep(0.002)
        self._release_clock()  # the callers' loop may have ended without its tasks

    def _send(self, message: bytes) -> None:
        if self._wire:
            self._wire.send(message)

    def _refuse(self, call: IncomingCall, refusal: CallRefused) -> None:
        self._admission.refuse(call.size)
        self._note(call, "refused", refusal.message)
        self._send(self._service.error(call.number, refusal.kind, refusal.message))
        self._service.set_reading(not self._admission.is_full)

    def _start(self, call: IncomingCall) -> None:
        if self.has_ended or call.number in self._tasks:
            self._end_as_cancelled(call)
            return
        work = self._perform(call)
        work.send(None)
        task = _new_task(self._loop, work)
        if not task.done():
            self._tasks[call.number] = task

    def _end_as_cancelled(self, call: IncomingCall) -> None:
        """Handle a cancelled call: by the code, by the run's end, or by the host function itself."""
        self._finish(call, "cancelled")
        self._send(self._service.error(call.number, "HostCallError", f"The call of {call.name} was cancelled."))

    def _cancel(self, number: int) -> None:
        if task := self._tasks.get(number):
            task.cancel()

    def _cancel_all(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()

    async def _perform(self, call: IncomingCall) -> None:
        """Run one call, record it, and answer it, in this order: after the answer the code continues."""
        try:
            await _entered()
            callers.set(callers.get() | {id(self._service)})
            status, error, answer = await self._outcome(call)
            self._finish(call, status, error, len(answer) if status == "ok" else 0)
            self._send(answer)
            self._own.spin.begin()
        except asyncio.CancelledError:
            self._end_as_cancelled(call)
            raise
        finally:
            self._tasks.pop(call.number, None)

    async def _outcome(self, call: IncomingCall) -> tuple[Status, str, bytes]:
        """Return the status, the text of a failure, and the answer."""
        try:
            function = self._service.functions[call.name]
            async with (
                self._place("", self._limits.max_concurrent),
                self._place(call.name, function.policy.concurrency),
            ):
                if small := self._reading.small(call):
                    return "ok", "", await self._answer(call, function, *small)
                async with self._reading.arguments(call) as arguments:
                    return "ok", "", await self._answer(call, function, *arguments)
        except CallRefused as refusal:
            return refusal.status, refusal.message, self._service.error(call.number, refusal.kind, refusal.message)
        except Exception as exc:  # noqa: BLE001  (a host function may raise anything; the code is told what it may know)
            if not self._limits.tell_errors:
                return "error", "failed", self._service.error(call.number, "", f"{call.name} failed.")
            name, text = failure(exc)
            return "error", f"{name}: {text}"[:MAX_ERROR_CHARS], self._service.error(call.number, "", text, name)

    async def _answer(
        self, call: IncomingCall, function: HostFunction, args: list[Any], kwargs: dict[str, Any]
    ) -> bytes:
        if function.policy.approve is not None:
            await self._approve(function.policy.approve, CallRequest(call.name, tuple(args), kwargs))
        answer = self._result(call, await self._in_time(call, function, args, kwargs))
        return await self._service.room_for(answer)

    async def _approve(self, approve: Approve, request: CallRequest) -> None:
        with self._clock_standing():
            try:
                answer = await asyncio.wait_for(is_approved(approve, request), self._limits.approval_timeout)
            except TimeoutError:
                answer = False
        if not answer:
            raise CallRefused("HostCallDenied", f"The call of {request.name} was not approved.", "denied")

    @contextlib.contextmanager
    def _clock_standing(self) -> Iterator[None]:
        """Pause the run's time limit, here and in the guest, during the block."""
        self._approvals += 1
        if self._approvals == 1:
            self._holds_clock = True
            self._clock.hold()
            self._send(pack({"op": "hold"}, []))
        try:
            yield
        finally:
            self._approvals -= 1
            if self._approvals == 0:
                self._release_clock()

    def _release_clock(self) -> None:
        """Continue the run's time limit, if it is paused."""
        with self._lock:
            was_held, self._holds_clock = self._holds_clock, False
        if was_held:
            self._clock.go()
            self._send(pack({"op": "go"}, []))

    async def _in_time(
        self, call: IncomingCall, function: HostFunction, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        limit = function.policy.timeout or self._limits.call_timeout
        left = min(limit, max(0.0, self._limits.max_host_seconds - self._admission.host_seconds))
        started = time.monotonic()
        async with asyncio.timeout(left) as alarm:
            try:
                return await called(function, tuple(args), kwargs)
            except ArgumentError as exc:
                raise CallRefused("HostCallArgumentError", str(exc), "error") from exc
            except (Exception, asyncio.CancelledError) as exc:
                if alarm.expired():
                    raise CallRefused(
                        "HostCallTimeout", f"{call.name} took longer than {left:g} s.", "timeout"
                    ) from exc
                raise
            finally:
                self._admission.host_seconds += time.monotonic() - started

    def _result(self, call: IncomingCall, value: Any) -> bytes:
        try:
            encoded, attachments = encode(value, f"result of {call.name}")
            return self._service.packed({"op": "result", "id": call.number, "value": encoded}, attachments)
        except NotEncodable as exc:
            raise CallRefused("HostCallError", str(exc), "error") from exc
        except TooLarge as exc:
            raise CallRefused("HostCallTooLarge", f"The result of {call.name} is too large: {exc}", "error") from exc

    def _place(self, name: str, width: int | None) -> contextlib.AbstractAsyncContextManager[Any]:
        if width is None:
            return _ANYWHERE
        if name not in self._places:
            self._places[name] = asyncio.Semaphore(width)
        return self._places[name]

    def _finish(self, call: IncomingCall, status: Status, error: str = "", sent: int = 0) -> None:
        self._note(call, status, error, sent)
        self._admission.end(call.size)
        self._service.set_reading(not self._admission.is_full)

    def _note(self, call: IncomingCall, status: Status, error: str = "", sent: int = 0) -> None:
        start, duration = call.begun - self._started, time.monotonic() - call.begun
        name, error = neutralise(call.name), neutralise(error)
        record = HostCall(call.number, name, call.preview, start, duration, status, error, call.size, sent)
        with self._lock:
            self._refused += status == "refused"
            if status != "refused" or self._refused <= MAX_REFUSALS:
                self._over.append(record)


@types.coroutine
def _entered() -> Generator[None, None, None]:
    """Wait for the first step of the task, so that an earlier cancellation is seen."""
    yield


def _new_task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)
    return loop.create_task(work)
