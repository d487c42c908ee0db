"""The thread that carries what all sandboxes of this process say over stdio, while there is any.

Theory of operation
    The descriptors of every relay are registered with one epoll(7), and only what changes is told to it, so that a
    round costs what its own relays cost, however many others there are. A relay is advanced when one of its
    descriptors is ready, or when it said that there is more to do. Each of these steps is bounded and none waits
    (relay.py), so a sandbox that says much, or reads nothing, gets no more than its turn.

    Whoever closes a descriptor forgets it here first: its number comes again, and a forked process may still hold it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
from typing import Protocol

from agent_tools.runtime.after_fork import abandon_after_fork

_log = logging.getLogger("agent_tools.relay")


class Carried(Protocol):
    """One sandbox's relay, as the loop sees it."""

    def advance(self, ready: set[int]) -> bool:
        """Do what can be done at once, with the descriptors that are ready; return whether there is more of it."""
        ...

    def fail(self) -> None:
        """End after a fault of ours."""
        ...


class RelayLoop:
    """Begun by `join`, and over when its last relay has left. `watch` and `forget` are for any thread."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._epoll = select.epoll()
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)
        self._epoll.register(self._wake.fileno(), select.EPOLLIN)
        self._relays: dict[int, Carried] = {}  # by descriptor
        self._has_more: set[Carried] = set()
        self.members: set[Carried] = set()
        abandon_after_fork(self)

    @property
    def is_here(self) -> bool:
        """True but in a forked child, whose parent has the thread."""
        return self._pid == os.getpid()

    def started(self) -> RelayLoop:
        """Begin the thread. Raises RuntimeError where there is none to be had."""
        try:
            threading.Thread(target=self._run, name="agent-tools-relay", daemon=True).start()
        except RuntimeError:
            self.abandon()
            raise
        return self

    def watch(self, descriptor: int, events: int, relay: Carried, *, is_new: bool) -> None:
        """Have a relay advanced when a descriptor is ready for these events."""
        if is_new:
            self._relays[descriptor] = relay
            self._epoll.register(descriptor, events)
        else:
            self._epoll.modify(descriptor, events)

    def forget(self, descriptor: int) -> None:
        """Watch a descriptor no more; in a forked child do nothing, since it is the parent's epoll."""
        if self.is_here:
            self._relays.pop(descriptor, None)
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(descriptor)

    def rouse(self) -> None:
        """Have the thread look whether there is anything left to do."""
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def abandon(self) -> None:
        """Let go of the descriptors; in a forked child, of what was inherited."""
        for held in (self._epoll, self._wake, self._waker):
            held.close()

    def _run(self) -> None:
        while self.members:
            for relay, ready in self._await().items():
                try:
                    has_more = relay.advance(ready)
                except Exception:  # noqa: BLE001  (a fault in one sandbox's relay must not end those of the others)
                    _log.exception("The relay of a sandbox failed.")
                    relay.fail()
                    continue
                if has_more:
                    self._has_more.add(relay)
        self.abandon()

    def _await(self) -> dict[Carried, set[int]]:
        """Return the relays that can go on, and the descriptors of theirs that are ready."""
        ready: dict[Carried, set[int]] = {relay: set() for relay in self._has_more}
        events = self._epoll.poll(0 if ready else None)
        self._has_more.clear()
        for descriptor, _ in events:
            if relay := self._relays.get(descriptor):
                ready.setdefault(relay, set()).add(descriptor)
            elif descriptor == self._wake.fileno():
                self._wake.recv(4096)
        return ready


_current: RelayLoop | None = None
_lock = threading.RLock()  # a finalizer may run in the very thread that holds it


def join(relay: Carried) -> RelayLoop:
    """Return the loop of this process, with one more relay that it carries; a forked child has one of its own.

    Raises:
        RuntimeError: there is no thread to be had.
    """
    global _current
    with _lock:
        loop = _current if _current and _current.is_here else RelayLoop()
        loop.members.add(relay)
        if loop is not _current:
            _current = loop.started()
        return loop


def leave(loop: RelayLoop, relay: Carried) -> None:
    """Carry a relay no more; the loop ends with the last."""
    global _current
    with _lock:
        loop.members.discard(relay)
        if not loop.members:
            _current = None if _current is loop else _current
            loop.rouse()
