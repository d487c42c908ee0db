"""Serves host functions to user code: limits, checks, and the record of calls.

The session's own event loop, in a thread that starts with the first call, reads a kernel's socket (guest/wire/calls.py
has the format). Calls are tasks of the caller's loop, if the run was started from one, else of the session's loop.
Messages of the guest are bounded, their types are checked, and the socket is closed if the guest breaks the protocol.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from agent_tools.errors import SessionBusy
from agent_tools.guest.wire.budget import Budget, GivenUp
from agent_tools.guest.wire.framing import TooLarge
from agent_tools.guest.wire.values import Rich, decode
from agent_tools.limits import CallLimits
from agent_tools.results.execution import HostCall, Omitted
from agent_tools.runtime.host_calls.function import CallRefused, Clock, HostFunction, serving_loop
from agent_tools.runtime.host_calls.loop import CallLoop
from agent_tools.runtime.host_calls.reading import SMALL_BYTES, IncomingCall, read
from agent_tools.runtime.host_calls.run import CallRun, callers
from agent_tools.runtime.host_calls.script_call import Request, ScriptCall, is_request
from agent_tools.runtime.host_calls.service import CallService
from agent_tools.runtime.host_calls.wire import CallWire


class HostCalls:
    """The host functions of one session. Call `serve`, `run` and `script_call` with the session's lock."""

    def __init__(
        self,
        functions: Mapping[str, HostFunction],
        limits: CallLimits | None = None,
        rich: Rich | None = None,
    ) -> None:
        self.limits = limits or CallLimits()
        self._script_call: ScriptCall | None = None
        self._service = CallService(functions, self.limits, rich)
        self._run: CallRun | None = None
        self._own = CallLoop(self.limits.max_concurrent)
        self._refused_outside = 0

    def refuse_caller(self) -> None:
        """Check that the caller is not a host function called by this session, which would wait for itself.

        Raises:
            SessionBusy: it is.
        """
        if id(self._service) in callers.get():
            raise SessionBusy("A host function cannot run code in the sandbox that called it; use another one.")

    def sibling(self) -> HostCalls:
        """Return the same functions under the same limits, for another session."""
        return HostCalls(self._service.functions, self.limits, self._service.rich)

    def add(self, functions: Mapping[str, HostFunction], *, others: bool = True) -> None:
        """Add functions, from now on; without `others`, replace all by them."""
        self._service.functions = {**(self._service.functions if others else {}), **functions}

    def serve(self, wire: CallWire) -> None:
        """Serve the calls of another kernel; calls of the previous one end, since call numbers are reused."""
        if run := self._run:
            self._run = None
            run.end()
        self._service.hang_up()
        self._service.wire = wire
        own = self._own  # the session's loop: a closed one is not started again
        wire.start(lambda: own.loop, self._take, self._is_wanted)

    @contextlib.contextmanager
    def run(self, clock: Clock) -> Iterator[Callable[[], list[HostCall | Omitted]]]:
        """Answer calls during a run, within its limits. Yields a function that takes the calls that have ended."""
        run = self._run = CallRun(self._service, serving_loop.get(), clock, self._own)
        self._refused_outside = 0
        self._service.set_reading(True)
        try:
            yield run.take_over
        finally:
            if not self.limits.allow_outside_run:
                self._run = None
                run.end()

    @contextlib.contextmanager
    def script_call(self, call: ScriptCall | None) -> Iterator[None]:
        """Serve the requests of the guest's runner in a call of a script's function, while this context is open."""
        self._script_call = call
        try:
            yield
        finally:
            self._script_call = None

    def close(self) -> None:
        """Hang up and end what is running."""
        if self._run:
            self._run.end()
        self._service.hang_up()
        self._own.close()
        self._own = CallLoop(self.limits.max_concurrent)

    def _is_wanted(self, number: int, name: str, size: int) -> bool:
        """Return whether a call should be read; if not, answer it. In the session's loop."""
        if self._script_call and is_request(name):
            return True
        if self._run is not None:
            return self._run.admits(number, name, size)
        self._refuse_outside(number)
        return False

    def _refuse_outside(self, number: int) -> None:
        self._service.fail(number, "HostCallDenied", "Host functions can be called only during a run.")
        self._refused_outside += 1
        self._service.set_reading(self._refused_outside <= self.limits.max_refusals)

    def _take(self, head: dict[str, Any], attachments: list[bytes], size: int) -> None:
        """Handle one message of the guest, in the session's loop."""
        run = self._run
        match head:
            case {"op": "call", "id": int(number), "name": str(name), "args": list(args), "kwargs": dict(kwargs)}:
                call = IncomingCall(number, name[:200], args, kwargs, attachments, size)
                if self._script_call and is_request(name):
                    self._begin_script(partial(self._answer_script, self._script_call, name, call), size)
                elif run is None:
                    self._refuse_outside(number)
                else:
                    run.begin(call)
            case {"op": "cancel", "id": int(number)} if run:
                run.cancel(number)

    def _begin_script(self, work: Callable[[Budget], None], size: int) -> None:
        """Answer a request of the script's runner: small ones here, large ones in the thread for arguments."""
        if size <= SMALL_BYTES:
            work(Budget(size))
        else:
            run = self._run
            self._own.reading.submit(work, Budget(size, lambda: run is None or run.has_ended))

    def _answer_script(self, script: ScriptCall, request: Request, call: IncomingCall, budget: Budget) -> None:
        try:
            given = read(lambda: decode(call.args[:1], call.attachments, self._service.rich, budget))
            encoded, parts = script.answer(request, given)
            self._service.reply({"op": "result", "id": call.number, "value": encoded}, parts)
            self._own.spin.begin()
        except (CallRefused, TooLarge, GivenUp) as exc:
            message = exc.message if isinstance(exc, CallRefused) else str(exc)
            self._service.fail(call.number, "HostCallArgumentError", message)
