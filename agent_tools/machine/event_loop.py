"""The event loop of this process, in one thread, while anything uses it.

Theory of operation
    Members are the relays of sandboxes connected over stdio, background commands, idle sockets for host calls, and
    egress allowlists, whose connections are tasks of the loop. Host functions run in other loops: they may block.

    Descriptors of the other members are in the loop's selector (epoll on Linux), which is updated only by changes, so
    that the cost of a round depends only on the members that are ready. A member is advanced when one of its
    descriptors is ready, or when it returned that it has more to do. Each step is bounded and does not wait, so a
    sandbox that sends much, or reads nothing, does not delay others.

    Call `forget` before closing a descriptor: its number is reused, and a forked process may still have it open.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from agent_tools.machine.fork_hook import abandon_after_fork
from agent_tools.machine.loop_thread import LoopThread

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

T = TypeVar("T")

_log = logging.getLogger("agent_tools.events")


class Member(Protocol):
    """An object that waits for descriptors in the loop."""

    def advance(self, ready: set[int]) -> bool:
        """Do a bounded step of work with the descriptors that are ready; return whether there is more to do."""
        ...

    def fail(self) -> None:
        """End after an exception in `advance`."""
        ...


class _Members(selectors.DefaultSelector):
    """A selector for asyncio that advances members itself: a callback of asyncio for each would cost more."""

    def __init__(self) -> None:
        super().__init__()
        self._has_more: set[Member] = set()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for descriptors, and advance the members that are ready; return what is asyncio's."""
        ready: dict[Member, set[int]] = {member: set() for member in self._has_more}
        events = super().select(0 if ready else timeout)
        self._has_more.clear()
        others = []
        for event in events:
            if isinstance(member := event[0].data, tuple):  # of callbacks
                others.append(event)
            else:
                ready.setdefault(member, set()).add(event[0].fd)
        for member, descriptors in ready.items():
            self._advance(member, descriptors)
        return others

    def _advance(self, member: Member, ready: set[int]) -> None:
        try:
            if member.advance(ready):
                self._has_more.add(member)
        except Exception:  # noqa: BLE001  (a fault with one sandbox must not end the others)
            _log.exception("Reading from or writing to a sandbox failed.")
            try:
                member.fail()
            except Exception:  # noqa: BLE001  (likewise)
                _log.exception("Closing a failed sandbox failed, too.")
                if loop := _place().loop:
                    leave(loop, member)


class EventLoop(LoopThread):
    """Started by `join`; ends when its last member has left. Any thread may call `watch` and `forget`."""

    def __init__(self) -> None:
        import asyncio  # slow to import, and not needed before the first member

        self._pid = os.getpid()
        self._selector = _Members()
        self._helpers: dict[str, ThreadPoolExecutor] = {}
        self.members: set[object] = set()
        super().__init__("agent-tools-events", asyncio.SelectorEventLoop(self._selector))
        abandon_after_fork(self)

    def watch(self, descriptor: int, events: int, member: Member, *, is_new: bool) -> None:
        """Advance a member whenever a descriptor is ready for these events."""
        change = self._selector.register if is_new else self._selector.modify
        change(descriptor, events, member)

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor; do nothing in a forked child, where the selector is the parent's."""
        if self._pid == os.getpid():
            with contextlib.suppress(OSError, ValueError, KeyError, RuntimeError):
                self._selector.unregister(descriptor)

    async def beside(self, name: str, threads: int, work: Callable[[], T]) -> T:
        """Run a blocking function in one of the threads of this name, at most `threads` of them."""
        helpers = self._helpers.get(name)
        if helpers is None:
            helpers = self._helpers[name] = ThreadPoolExecutor(threads, thread_name_prefix=name)
        return await self.loop.run_in_executor(helpers, work)

    def stop(self) -> None:
        """Stop the loop soon, without ending its tasks; do nothing in a forked child."""
        if self._pid == os.getpid():
            super().stop()

    def abandon(self) -> None:
        """In a forked child, close the inherited selector."""
        self._selector.close()

    def _run(self) -> None:
        super()._run()
        for helpers in self._helpers.values():
            helpers.shutdown(wait=False, cancel_futures=True)


class WatchedDescriptors:
    """The descriptors that a member waits for; the loop gets changes alone. It holds no reference to the member."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._events: dict[int, int] = {}  # by descriptor

    def want(self, wanted: Mapping[int, int], member: Member) -> None:
        """Have a member wait for these events, by descriptor, and for nothing else."""
        for descriptor in self._events.keys() - wanted.keys():
            self.forget(descriptor)
        for descriptor, events in wanted.items():
            known = self._events.get(descriptor)
            if known != events:
                self._loop.watch(descriptor, events, member, is_new=known is None)
                self._events[descriptor] = events

    def forget(self, descriptor: int) -> None:
        """Wait no more for a descriptor, which may be closed then."""
        if self._events.pop(descriptor, None) is not None:
            self._loop.forget(descriptor)

    def forget_all(self) -> None:
        """Wait for nothing."""
        for descriptor in list(self._events):
            self.forget(descriptor)


class _Place:
    """The place of a process's loop, while it has members."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # an RLock, since a finalizer may run in the thread that holds it
        self.loop: EventLoop | None = None


_by_process: dict[int, _Place] = {}  # no lock guards it: a child might be forked while another thread holds one


def _place() -> _Place:
    return _by_process.setdefault(os.getpid(), _Place())


def is_here() -> bool:
    """Return whether this thread runs the loop of this process, and so must not wait."""
    loop = _place().loop
    return loop is not None and loop.is_here


def join(member: object) -> EventLoop:
    """Return the loop of this process, with one more member; a forked child has its own loop.

    Raises:
        RuntimeError: the thread cannot be started.
    """
    place = _place()
    with place.lock:
        place.loop = place.loop or EventLoop()
        place.loop.members.add(member)
        return place.loop


def leave(loop: EventLoop, member: object) -> None:
    """Leave the loop, which ends with its last member."""
    place = _place()
    with place.lock:
        loop.members.discard(member)
        is_last = not loop.members
        if is_last and place.loop is loop:
            place.loop = None
    if is_last:
        loop.stop()
