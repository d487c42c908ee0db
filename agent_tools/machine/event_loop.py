"""The thread that waits for what all sandboxes of this process say, where nobody else does, while there is any.

Theory of operation
    Its members are the relays of sandboxes that are spoken to over stdio, and sockets for host calls that nothing has
    come over yet. Their descriptors are registered with one selector (epoll on Linux), and only what changes is told
    to it, so that a round costs what the members that are ready cost, however many others there are. A member is
    advanced when one of its descriptors is ready, or when it said that there is more to do. Each of these steps is
    bounded and none waits, so a sandbox that says much, or reads nothing, gets no more than its turn.

    Whoever closes a descriptor forgets it here first: its number comes again, and a forked process may still hold it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import weakref
from typing import Protocol

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

_log = logging.getLogger("agent_tools.events")


class Member(Protocol):
    """Somebody who waits for descriptors."""

    def advance(self, ready: set[int]) -> bool:
        """Do what can be done at once, with the descriptors that are ready; return whether there is more of it."""
        ...

    def fail(self) -> None:
        """End after a fault of ours."""
        ...


class EventLoop:
    """Begun by `join`, and over when its last member has left. `watch` and `forget` are for any thread."""

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
        """True but in a forked child, whose parent has the thread."""
        return self._pid == os.getpid()

    def started(self) -> EventLoop:
        """Begin the thread. Raises RuntimeError where there is none to be had."""
        try:
            threading.Thread(target=self._run, name="agent-tools-events", daemon=True).start()
        except RuntimeError:
            self.abandon()
            raise
        return self

    def watch(self, descriptor: int, events: int, member: Member, *, is_new: bool) -> None:
        """Have a member advanced when a descriptor is ready for these events."""
        if is_new:
            self._selector.register(descriptor, events)
            self._by_descriptor[descriptor] = member
        else:
            self._selector.modify(descriptor, events)

    def forget(self, descriptor: int) -> None:
        """Watch a descriptor no more; in a forked child do nothing, since it is the parent's selector."""
        if self.is_here:
            self._by_descriptor.pop(descriptor, None)
            with contextlib.suppress(OSError, ValueError, KeyError):
                self._selector.unregister(descriptor)

    def rouse(self) -> None:
        """Have the thread look whether there is anything left to do."""
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def abandon(self) -> None:
        """Let go of the descriptors; in a forked child, of what was inherited."""
        for held in (self._selector, self._wake, self._waker):
            held.close()

    def _run(self) -> None:
        while self.members:
            for member, ready in self._await().items():
                try:
                    has_more = member.advance(ready)
                except Exception:  # noqa: BLE001  (a fault with one sandbox must not end the others)
                    _log.exception("What a sandbox said could not be carried.")
                    self._fail(member)
                    continue
                if has_more:
                    self._has_more.add(member)
        self.abandon()

    def _fail(self, member: Member) -> None:
        try:
            member.fail()
        except Exception:  # noqa: BLE001  (likewise)
            _log.exception("The end of a sandbox was not orderly.")
            leave(self, member)

    def _await(self) -> dict[Member, set[int]]:
        """Return the members that can go on, and the descriptors of theirs that are ready."""
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
        self.lock = threading.RLock()  # a finalizer may run in the very thread that holds it
        self.loop: EventLoop | None = None


_by_process: dict[int, _Place] = {}  # no lock guards it: a child might be forked while another thread holds one


def _place() -> _Place:
    return _by_process.setdefault(os.getpid(), _Place())


def join(member: Member) -> EventLoop:
    """Return the loop of this process, with one more member; a forked child has one of its own.

    Raises:
        RuntimeError: there is no thread to be had.
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


# Forked children let go of what they inherit: a child must not keep its dead parent's sandboxes alive.


class Inherited(Protocol):
    """Something that holds descriptors which end a sandbox when the last of them is closed."""

    def abandon(self) -> None:
        """Close them in a forked child, without a word to the sandbox."""
        ...


_held: weakref.WeakSet[Inherited] = weakref.WeakSet()
_is_hooked = False


def abandon_after_fork(held: Inherited) -> None:
    """Have `held.abandon` called in every child that this process forks while it lives."""
    global _is_hooked
    _held.add(held)
    if not _is_hooked:
        _is_hooked = True
        os.register_at_fork(after_in_child=_abandon_all)


def _abandon_all() -> None:
    for held in list(_held):
        held.abandon()
