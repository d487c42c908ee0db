"""The host's half of host calls: what the code asks goes to its caller as it came, and his answers to the code.

The functions, with every limit, check and approval, stay with the caller, whose `HostCalls` hears and answers as if the
kernel were beside it. Here a message is bounded and taken apart, and the code waits while too much is under way.

An order of the caller is one message of several that may overtake each other; so they are numbered, from 1 in each run.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from agent_tools.fleet.limits import MAX_WAITING_ORDERS
from agent_tools.fleet.protocol import CallMessage
from agent_tools.limits import CallLimits
from agent_tools.results.execution import HostCall, Omitted
from agent_tools.runtime.host_calls.function import Clock, HostFunction
from agent_tools.runtime.host_calls.wire import MAX_UNREAD, CallLoop, CallService, CallTransport, TakeOver

TOLD_BYTES = MAX_UNREAD // 4  # of answers, after which the caller is told that so much was taken

Order = Literal["answer", "hold", "go", "read_on"]
"""Of a caller: the bytes of an answer; let the run's clock stand, or go; read what the code sends, or leave it."""


class CallRelay:
    """Serves the calls of one session. `hear` is given to it for each run."""

    def __init__(self, limits: CallLimits) -> None:
        self.limits = limits
        self._service = CallService({}, limits)
        self._own = CallLoop(1)
        self._lock = threading.Lock()
        self._hear: Callable[[CallMessage], object] | None = None
        self._clock: Clock | None = None
        self._run = ""
        self._next = 1
        self._waiting: dict[int, tuple[Order, Any]] = {}
        self._unheard = 0  # bytes
        self._is_wanted = True
        self._given = self._told = 0  # bytes of answers of this run

    @property
    def is_calling(self) -> bool:
        """False: nothing of the caller's runs here."""
        return False

    def sibling(self) -> CallRelay:
        """Return another one."""
        return CallRelay(self.limits)

    def add(self, functions: Mapping[str, HostFunction], *, others: bool = True) -> None:
        """Nothing: the caller has the functions."""

    def begin(self, run: str, hear: Callable[[CallMessage], object]) -> None:
        """Give what the code says from now on to `hear`; orders of this run count, and no others."""
        with self._lock:
            self._run, self._hear = run, hear
            self._next, self._waiting = 1, {}
            self._unheard, self._is_wanted = 0, True
            self._given = self._told = 0
        self._service.read_on(True)

    def end(self, run: str) -> None:
        """Refuse what the code asks from now on, if this run is the latest; answers on their way still count."""
        with self._lock:
            if run == self._run:
                self._hear = None

    def serve(self, wire: CallTransport) -> None:
        """Take the calls of another kernel."""
        self._service.hang_up()
        self._service.wire = wire
        own = self._own
        wire.start(lambda: own.loop, self._take, self._is_heard)

    @contextlib.contextmanager
    def run(self, clock: Clock) -> Iterator[TakeOver]:
        """Around a run: the caller may have its clock stand still."""
        self._clock = clock
        try:
            yield _nothing
        finally:
            self._clock = None

    def close(self) -> None:
        """Hang up."""
        self.end(self._run)
        self._service.hang_up()
        self._own.close()
        self._own = CallLoop(1)

    def heard(self, word: CallMessage) -> None:
        """A message is on its way to the caller."""
        with self._lock:
            self._unheard -= word.size
        self._read_on()

    def order(self, run: str, number: int, what: Order, data: Any) -> None:
        """Do what the caller orders, in the order of the numbers."""
        with self._lock:
            if run != self._run or number < self._next:
                return
            if len(self._waiting) >= MAX_WAITING_ORDERS and number != self._next:
                self._service.hang_up()
                return
            self._waiting[number] = (what, data)
            while due := self._waiting.pop(self._next, None):
                self._next += 1
                self._obey(*due)

    def _obey(self, what: Order, data: Any) -> None:
        clock = self._clock
        if what == "answer":
            self._service.send(bytes(data))
            self._give_account(len(data))
        elif what == "read_on":
            self._is_wanted = bool(data)
            self._service.read_on(self._is_wanted and self._has_room)
        elif clock and what in ("hold", "go"):
            (clock.hold if what == "hold" else clock.go)()

    def _give_account(self, sent: int) -> None:
        """Tell the caller, now and then, how much of his answers is taken, so that he sends on."""
        self._given += sent
        if self._given - self._told >= TOLD_BYTES:
            self._told = self._given
            with contextlib.suppress(RuntimeError):  # closed: nothing is taken any more
                asyncio.run_coroutine_threadsafe(self._tell_taken(self._run, self._given), self._own.loop)

    @property
    def _has_room(self) -> bool:
        return self._unheard <= self.limits.max_open_bytes

    def _read_on(self) -> None:
        self._service.read_on(self._is_wanted and self._has_room)

    # -- in the loop --------------------------------------------------------------------------------------------------

    async def _tell_taken(self, run: str, count: int) -> None:
        await self._service.room_for(b"")
        with self._lock:
            hear = self._hear if run == self._run else None
        if hear:
            hear(CallMessage({"op": "taken", "bytes": count}, [], 0))

    def _is_heard(self, number: int, _name: str, _size: int) -> bool:
        """Return whether a call can be passed on; if not, answer it."""
        if self._hear is None:
            self._service.fail(number, "HostCallDenied", "Host functions answer only while a run goes on.")
        return self._hear is not None

    def _take(self, head: dict[str, Any], attachments: list[bytes], size: int) -> None:
        if head.get("op") not in ("call", "cancel"):  # "taken" is ours to say
            return
        with self._lock:
            hear = self._hear
            self._unheard += size if hear else 0
        if hear is None:
            if head.get("op") == "call" and isinstance(number := head.get("id"), int):
                self._is_heard(number, "", size)
            return
        hear(CallMessage(head, [bytes(each) for each in attachments], size))
        if not self._has_room:
            self._read_on()


def _nothing() -> list[HostCall | Omitted]:
    """The calls that are over: the caller tells them."""
    return []
