"""An event loop in one thread that reads from all sandboxes of this process, while there are any.

Theory of operation
    Members are the relays of sandboxes connected over stdio, background commands, and idle sockets for host calls.
    Their descriptors are registered with one selector (epoll on Linux), which is updated only by changes, so that the
    cost of a round depends only on the members that are ready. A member is advanced when one of its descriptors is
    ready, or when it returned that it has more to do. Each step is bounded and does not wait, so a sandbox that sends
    much, or reads nothing, does not delay others.

    Call `forget` before closing a descriptor: its number is reused, and a forked process may still have it open.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
from typing import Protocol

from agent_tools.machine.fork_hook import abandon_after_fork

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

_log = logging.getLogger("agent_tools.events")


class Member(Protocol):
    """An object that waits for descriptors in the loop."""

    def advance(self, ready: set[int]) -> bool:
        """Do a bounded step of work with the descriptors that are ready; return whether there is more to do."""
        ...

    def fail(self) -> None:
        """End after an exception in `advance`."""
        ...


class EventLoop:
    """Started by `join`; ends when its last member has left. Any thread may call `watch` and `forget`."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._wake.fileno(), READ)
        self._by_descriptor: dict[int, Member] = {}  # by descriptor
        self._has_more: set[Member] = set()
        self.members: set[Member] = set()
        abandon_after_fork(self)

    @property
    def is_here(self) -> bool:
        """False in a forked child, whose parent has the thread."""
        return self._pid == os.getpid()

    def started(self) -> EventLoop:
        """Start the thread. Raises RuntimeError if that fails."""
        try:
            threading.Thread(target=self._run, name="agent-tools-events", daemon=True).start()
        except RuntimeError:
            self.abandon()
            raise
        return self

    def watch(self, descriptor: int, events: int, member: Member, *, is_new: bool) -> None:
        """Advance a member whenever a descriptor is ready for these events."""
        if is_new:
            self._selector.register(descriptor, events)
            self._by_descriptor[descriptor] = member
        else:
            self._selector.modify(descriptor, events)

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor; do nothing in a forked child, where the selector is the parent's."""
        if self.is_here:
            self._by_descriptor.pop(descriptor, None)
            with contextlib.suppress(OSError, ValueError, KeyError):
                self._selector.unregister(descriptor)

    def rouse(self) -> None:
        """Wake the thread to check whether there is anything left to do."""
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def abandon(self) -> None:
        """Close the descriptors; in a forked child, the inherited ones."""
        for each in (self._selector, self._wake, self._waker):
            each.close()

    def _run(self) -> None:
        while self.members:
            for member, ready in self._await().items():
                try:
                    has_more = member.advance(ready)
                except Exception:  # noqa: BLE001  (a fault with one sandbox must not end the others)
                    _log.exception("Reading from or writing to a sandbox failed.")
                    self._fail(member)
                    continue
                if has_more:
                    self._has_more.add(member)
        self.abandon()

    def _fail(self, member: Member) -> None:
        try:
            member.fail()
        except Exception:  # noqa: BLE001  (likewise)
            _log.exception("Closing a failed sandbox failed, too.")
            leave(self, member)

    def _await(self) -> dict[Member, set[int]]:
        """Return the members that can go on, with their ready descriptors."""
        ready: dict[Member, set[int]] = {member: set() for member in self._has_more}
        events = self._selector.select(0 if ready else None)
        self._has_more.clear()
        for key, _ in events:
            descriptor = key.fd
            if member := self._by_descriptor.get(descriptor):
                ready.setdefault(member, set()).add(descriptor)
            elif descriptor == self._wake.fileno():
                self._wake.recv(4096)
        return ready


class _Place:
    """The place of a process's loop, while it has members."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # an RLock, since a finalizer may run in the thread that holds it
        self.loop: EventLoop | None = None


_by_process: dict[int, _Place] = {}  # no lock guards it: a child might be forked while another thread holds one


def _place() -> _Place:
    return _by_process.setdefault(os.getpid(), _Place())


def join(member: Member) -> EventLoop:
    """Return the loop of this process, with one more member; a forked child has its own loop.

    Raises:
        RuntimeError: the thread cannot be started.
    """
    place = _place()
    with place.lock:
        loop = place.loop or EventLoop()
        loop.members.add(member)
        if loop is not place.loop:
            place.loop = loop.started()
        return loop


def leave(loop: EventLoop, member: Member) -> None:
    """Leave the loop, which ends with its last member."""
    place = _place()
    with place.lock:
        loop.members.discard(member)
        if not loop.members:
            place.loop = None if place.loop is loop else place.loop
            loop.rouse()
