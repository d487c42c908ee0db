"""Serves host functions to the code in a sandbox: every limit, every check, and the record of what was called.

An event loop of our own, in a thread, reads a kernel's socket (guest/frames.py has the format). The calls are tasks of
the caller's loop, where the run was started from one, else of ours. What the guest sends is bounded before it is held,
its types are checked, and a guest that breaks the protocol is hung up on.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agent_tools.execution import HostCall, Omitted
from agent_tools.guest.frames import TooLarge
from agent_tools.guest.values import Encoded, decode
from agent_tools.runtime.call_run import Call, CallRun, callers
from agent_tools.runtime.call_service import CallService
from agent_tools.runtime.call_wire import CallWire
from agent_tools.runtime.host_function import Clock, HostFunction
from agent_tools.runtime.own_loop import OwnLoop
from agent_tools.settings import CallLimits

serving_loop: contextvars.ContextVar[asyncio.AbstractEventLoop | None] = contextvars.ContextVar(
    "serving_loop", default=None
)
"""The event loop whose tasks host calls are to be; it must be free while the run goes on."""


class HostCalls:
    """The functions of one session. `serve` and `run` are for the thread whose turn it is.

    `internal` are functions for the host's own code in the guest, of one argument at most and with an encoded result:
    called where the socket is read, without limits.
    """

    def __init__(
        self,
        functions: Mapping[str, HostFunction],
        limits: CallLimits | None = None,
        rich: Callable[[str, bytes], Any] | None = None,
    ) -> None:
        self.limits = limits or CallLimits()
        self.internal: dict[str, Callable[..., Encoded]] = {}
        self._service = CallService(functions, self.limits, rich)
        self._run: CallRun | None = None
        self._loop: OwnLoop | None = None

    @property
    def is_calling(self) -> bool:
        """Whether this very task or thread works on a call of this session."""
        return id(self._service) in callers.get()

    def serve(self, wire: CallWire) -> None:
        """Take the calls of a fresh kernel."""
        self._service.hang_up()
        self._service.wire = wire
        wire.start(self._own_loop(), self._take)

    @contextlib.contextmanager
    def run(self, clock: Clock) -> Iterator[Callable[[], list[HostCall | Omitted]]]:
        """Around a run: calls are answered within its limits. Gives what takes the calls that are over by now."""
        loop = serving_loop.get() or self._own_loop()
        run = self._run = CallRun(self._service, loop, clock, is_own_loop=loop is self._own_loop())
        try:
            yield run.take_over
        finally:
            if not self.limits.allow_outside_run:
                self._run = None
                run.end()

    def close(self) -> None:
        """Hang up and end what is running."""
        if self._run:
            self._run.end()
        self._service.hang_up()
        if self._loop:
            self._loop.close()
            self._loop = None

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = OwnLoop(self.limits.max_concurrent)
        return self._loop.loop

    def _take(self, head: dict[str, Any], attachments: list[bytes], size: int) -> None:
        """One message of the guest, in our loop."""
        run = self._run
        match head:
            case {"op": "call", "id": int(number), "name": str(name), "args": list(args), "kwargs": dict(kwargs)}:
                if name in self.internal:
                    self._answer_internal(number, name, args, attachments)
                elif run is None:
                    self._service.fail(number, "HostCallDenied", "Host functions answer only while a run goes on.")
                else:
                    run.begin(Call(number, name[:200], args, kwargs, attachments, size))
            case {"op": "cancel", "id": int(number)} if run:
                run.cancel(number)

    def _answer_internal(self, number: int, name: str, args: list[Any], attachments: list[bytes]) -> None:
        try:
            encoded, parts = self.internal[name](*decode(args[:1], attachments, self._service.rich))
            self._service.reply({"op": "result", "id": number, "value": encoded}, parts)
        except (ValueError, TypeError, ArithmeticError, TooLarge) as exc:
            self._service.fail(number, "HostCallArgumentError", str(exc))
