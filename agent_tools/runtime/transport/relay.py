"""Carries a sandbox's words and channels between its stdio and local sockets, in one thread that never waits for one.

Theory of operation
    The thread polls three kinds of descriptors: the sandbox's stdio, the local end of the lifeline's words, and the
    local end of every channel. Each round it takes in what stdio has, then the words of this process, then moves
    bytes between the multiplexer and the channels, and last writes what the multiplexer has for stdio. An order is
    taken before the bytes of the channels that it opens, and a report is passed on after the bytes before it, so both
    sides see things in the order in which they happened.

To the rest of the host the sandbox looks as if it were reached over unix sockets. The frames, and the bound on what
either side may have on its way, are guest/wire/mux.py's; a guest that breaks them is hung up on.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable

from agent_tools.guest.wire.mux import MAX_OUT, Mux, MuxError
from agent_tools.guest.wire.words import MAX_WORDS, Ready, read_report
from agent_tools.runtime.after_fork import abandon_after_fork
from agent_tools.runtime.engine import Stdio
from agent_tools.runtime.transport.words_pair import Words

READS_PER_ROUND = 16


class Relay:
    """Owns the stdio and runs until it ends or `close` is called. `words` leads to a Lifeline."""

    def __init__(self, stdio: Stdio, words: Words) -> None:
        self._stdio = stdio
        self._words = words
        self._mux = Mux()
        self._lock = threading.Lock()  # guards the mux and is never held while waiting
        self._wake, self._waker = socket.socketpair()
        self._is_closing = False
        self._has_more = False
        self._ready = threading.Event()
        self._ended = threading.Event()
        words.setblocking(False)
        self._waker.setblocking(False)
        abandon_after_fork(self)
        self._thread = threading.Thread(target=self._run, name="agent-tools-relay", daemon=True)
        self._thread.start()

    def await_ready(self, deadline: float, still_runs: Callable[[], bool]) -> bool:
        """Wait for the guest's first word; False at the deadline, or when the sandbox has ended."""
        while time.monotonic() < deadline:
            if self._ready.wait(min(0.5, max(0.0, deadline - time.monotonic()))):
                return True
            if self._ended.is_set() or not still_runs():
                return False
        return False

    def carry(self, channel: int, end: socket.socket) -> None:
        """Carry what this socket says and hears as a channel, and close it with the channel."""
        with self._lock:
            if self._is_closing:
                end.close()
                return
            self._mux.open(channel, end)
        self._rouse()

    def close(self) -> None:
        """End the thread and hang up, which ends the sandbox."""
        self._is_closing = True
        self._rouse()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._wake.close()
        self._waker.close()

    def _rouse(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def _run(self) -> None:
        try:
            with contextlib.suppress(OSError, MuxError):
                while not self._is_closing:
                    ready = self._poll()
                    with self._lock:
                        self._exchange(ready)
        finally:
            with self._lock:
                self._is_closing = True
                self._mux.close_all()
            self._words.close()  # the lifeline sees the end
            self._stdio.close()
            self._ended.set()

    def _poll(self) -> set[int]:
        poller = select.poll()
        with self._lock:
            readers, writers = self._mux.wants()
            waiting = len(self._mux.out)
        events: dict[int, int] = {self._stdio.fileno(): select.POLLIN, self._wake.fileno(): select.POLLIN}
        if waiting:
            events[self._stdio.fileno()] |= select.POLLOUT
        if waiting < MAX_OUT:
            events[self._words.fileno()] = select.POLLIN
        for wanted, mask in ((readers, select.POLLIN), (writers, select.POLLOUT)):
            for end in wanted:
                events[end.fileno()] = events.get(end.fileno(), 0) | mask
        for descriptor, mask in events.items():
            if descriptor >= 0:
                poller.register(descriptor, mask)
        return {descriptor for descriptor, _ in poller.poll(0 if self._has_more else None)}

    def _exchange(self, ready: set[int]) -> None:
        if self._wake.fileno() in ready:
            self._wake.recv(4096)
        if self._has_more or self._stdio.fileno() in ready:
            self._hear()
        self._take_words()
        self._mux.exchange(ready)
        while self._mux.out and (sent := self._stdio.send(self._mux.out)):
            del self._mux.out[:sent]

    def _hear(self) -> None:
        """Take in what the sandbox says, but not forever."""
        self._has_more = False
        for _ in range(READS_PER_ROUND):
            data = self._stdio.receive()
            if data is None:
                return
            if not data:
                raise OSError("the sandbox ended")
            for words in self._mux.feed(data):
                self._pass_on(words)
        self._has_more = True

    def _pass_on(self, words: bytes) -> None:
        if isinstance(read_report(words), Ready):
            self._ready.set()
        elif words:
            with contextlib.suppress(BlockingIOError):  # a host that does not listen needs no second telling
                self._words.send(words[:MAX_WORDS])

    def _take_words(self) -> None:
        """Take all that is there: an order goes out before the first bytes of the channels it opens."""
        with contextlib.suppress(BlockingIOError):
            while len(self._mux.out) < MAX_OUT:
                words = self._words.recv(MAX_WORDS)
                if not words:
                    raise OSError("the host hung up")
                self._mux.say(words)

    def abandon(self) -> None:
        """In a forked child: let go of everything inherited, without a word to the sandbox."""
        for held in (self._words, self._wake, self._waker):
            held.close()
        self._mux.close_all()
        self._stdio.close()
