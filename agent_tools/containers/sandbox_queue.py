"""The queue for sandboxes that run code: every door enters here before it uses one, and owners take turns.

At most `slots` sandboxes run code at once, at most `most` of them for one owner. Uses of one container share a slot.
A slot that becomes free goes to the owner whose turn it is; the owner moves to the end then.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from agent_tools.containers.failures import NoSandbox


class Ticket(Future[None]):
    """A use of a slot, or a wait for one: it is done when the use may begin. `container` is '' for a slot alone."""

    def __init__(self, owner: str, container: str) -> None:
        super().__init__()
        self.owner = owner
        self.container = container
        self.since = time.monotonic()


class SandboxQueue:
    """Thread-safe; a holder of a ticket leaves in any case.

    Attributes:
        waited: called with the seconds that each use waited, even if it gave up.
    """

    def __init__(self, slots: int, most: int) -> None:
        self._slots = slots
        self._most = most
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()  # slots, by owner
        self._uses: Counter[str] = Counter()  # of a slot, by container
        self._using: set[Ticket] = set()
        self._waiting: OrderedDict[str, deque[Ticket]] = OrderedDict()  # by owner, the next one first
        self.waited: Callable[[float], None] = lambda _: None

    @property
    def waiting(self) -> int:
        """The number of uses that wait."""
        with self._lock:
            return sum(map(len, self._waiting.values()))

    @contextmanager
    def slot(self, owner: str, container: str, timeout: float) -> Iterator[None]:
        """Use a slot for code in a container; wait for it in this thread, at most `timeout` seconds.

        Raises:
            NoSandbox: none became free.
        """
        ticket = self.enter(owner, container)
        try:
            try:
                ticket.result(max(timeout, 0.0))
            except concurrent.futures.TimeoutError:
                raise self._too_late(ticket) from None
            finally:
                self.waited(time.monotonic() - ticket.since)
            yield
        finally:
            self.leave(ticket)

    async def wait(self, ticket: Ticket, timeout: float) -> None:
        """Wait for a slot in the event loop; leave the queue if it is waited for in vain. Errors as for `slot`."""
        try:
            if not ticket.done():
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(ticket)), timeout)
        except BaseException as exc:
            late = self._too_late(ticket)
            self.leave(ticket)
            if isinstance(exc, asyncio.TimeoutError):
                raise late from None
            raise
        finally:
            self.waited(time.monotonic() - ticket.since)

    def enter(self, owner: str, container: str = "") -> Ticket:
        """Ask for a slot; the ticket says when it is there."""
        ticket = Ticket(owner, container)
        with self._lock:
            if self._uses[container] or self._may_have_another(owner):
                self._take(ticket)
            else:
                self._waiting.setdefault(owner, deque()).append(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """End a use, or a wait; the slot goes to the next one. Do nothing if it has ended."""
        with self._lock:
            if ticket in self._using:
                self._using.discard(ticket)
                self._free(ticket)
            elif ticket in self._waiting.get(ticket.owner, ()):
                self._drop(ticket)

    def refuse(self, ticket: Ticket, why: Exception) -> None:
        """End a wait with an error."""
        with self._lock:
            if ticket in self._waiting.get(ticket.owner, ()):
                self._drop(ticket)
                ticket.set_exception(why)

    def close(self, why: Exception) -> None:
        """End all waits with an error."""
        with self._lock:
            waiting = [ticket for tickets in self._waiting.values() for ticket in tickets]
        for ticket in waiting:
            self.refuse(ticket, why)

    # -- with the lock ------------------------------------------------------------------------------------------------

    def _may_have_another(self, owner: str) -> bool:
        return self._held.total() < self._slots and self._held[owner] < self._most

    def _take(self, ticket: Ticket) -> None:
        if not self._uses[ticket.container]:
            self._held[ticket.owner] += 1
        if ticket.container:
            self._uses[ticket.container] += 1
        self._using.add(ticket)
        ticket.set_result(None)

    def _free(self, ticket: Ticket) -> None:
        if ticket.container:
            self._uses[ticket.container] -= 1
        if self._uses[ticket.container]:
            return
        self._uses += Counter()  # forgets what is not used
        self._held[ticket.owner] -= 1
        self._held += Counter()
        for owner in list(self._waiting):
            if self._may_have_another(owner):
                self._call_in(owner)
                return

    def _call_in(self, owner: str) -> None:
        """Give a slot to the first ticket of an owner and those of its container; the owner moves to the end."""
        tickets = self._waiting.pop(owner)
        first = tickets.popleft()
        others = [each for each in tickets if first.container and each.container == first.container]
        for each in (first, *others):
            self._take(each)
        if left := deque(each for each in tickets if each not in others):
            self._waiting[owner] = left

    def _drop(self, ticket: Ticket) -> None:
        tickets = self._waiting[ticket.owner]
        tickets.remove(ticket)
        if not tickets:
            del self._waiting[ticket.owner]

    # -- words --------------------------------------------------------------------------------------------------------

    def _too_late(self, ticket: Ticket) -> NoSandbox:
        with self._lock:
            own, all_ = self._held[ticket.owner], self._held.total()
        waited = time.monotonic() - ticket.since
        waited_text = f"No sandbox became free within {waited:.0f} s" if waited >= 1 else "No sandbox is free"
        if own >= self._most and all_ < self._slots:
            return NoSandbox(f"{waited_text}: you use {own}, the most that one key may; try again later.")
        return NoSandbox(f"{waited_text}: every sandbox is in use, {own} of {all_} by you; try again later.")
