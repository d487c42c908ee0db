"""Drives all commands in the background, of every sandbox of this process, in one thread that ends with the last."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading

from agent_tools.runtime.commands.process import Process

LOOK_EVERY = 0.5  # seconds between two looks at the clock


class Pump:
    """Processes are added once; they leave when they are over."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[Process] = set()
        self._waker: socket.socket | None = None

    def add(self, process: Process) -> None:
        """Drive this process from now on."""
        with self._lock:
            self._processes.add(process)
            if self._waker is None:
                wake, self._waker = socket.socketpair()
                self._waker.setblocking(False)
                threading.Thread(target=self._run, args=(wake,), name="agent-tools-commands", daemon=True).start()
        self.rouse()

    def rouse(self) -> None:
        """Have the thread look again at what it waits for."""
        with contextlib.suppress(OSError, AttributeError):  # it has gone: nothing is left to drive
            self._waker.send(b"\0")  # type: ignore[union-attr]

    def _run(self, wake: socket.socket) -> None:
        with wake, selectors.DefaultSelector() as selector:
            while self._keep_on():
                self._wait(selector, wake)

    def _keep_on(self) -> bool:
        """Forget who is over; the thread ends with the last."""
        with self._lock:
            self._processes = {process for process in self._processes if not process.is_over}
            if not self._processes and self._waker:
                self._waker.close()
                self._waker = None
            return bool(self._processes)

    def _wait(self, selector: selectors.BaseSelector, wake: socket.socket) -> None:
        """Wait until something is ready, and drive it."""
        with self._lock:
            watched = {process.fileno(): process for process in self._processes if process.fileno() >= 0}
        _watch(selector, watched, wake.fileno())
        for key, _ in selector.select(LOOK_EVERY):
            if key.fd == wake.fileno():
                wake.recv(4096)
            elif process := watched.get(key.fd):
                process.advance()
        for process in watched.values():
            process.look_at_clock()


def _watch(selector: selectors.BaseSelector, watched: dict[int, Process], wake: int) -> None:
    """Register anew what is waited for: descriptors come and go, and their numbers come again."""
    for key in list(selector.get_map().values()):
        selector.unregister(key.fd)
    selector.register(wake, selectors.EVENT_READ)
    for descriptor, process in watched.items():
        events = 0 if process.is_ahead else selectors.EVENT_READ
        events |= selectors.EVENT_WRITE if process.has_more_to_say else 0
        if not events:
            continue
        with contextlib.suppress(OSError, ValueError):  # it was closed just now
            selector.register(descriptor, events)


_pumps: dict[int, Pump] = {}
_pumps_lock = threading.Lock()


def pump() -> Pump:
    """Return this process's pump; a forked child has one of its own."""
    with _pumps_lock:
        return _pumps.setdefault(os.getpid(), Pump())
