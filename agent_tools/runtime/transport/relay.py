"""Carries a sandbox's words and channels between its stdio and local sockets, without ever waiting for one of them.

Theory of operation
    A relay has three kinds of descriptors: the sandbox's stdio, the local end of the lifeline's words, and the local
    end of every channel. One thread has the relays of all sandboxes (event_loop.py), and advances one when something
    of it is ready. Each step takes in what stdio has, then the words of this process, then moves bytes between the
    multiplexer and the channels, and last writes what the multiplexer has for stdio. An order is taken before the
    bytes of the channels that it opens, and a report is passed on after the bytes before it, so both sides see
    things in the order in which they happened. A step takes READS_PER_STEP pieces at most, fewer when they are
    laborious: then it is the next sandbox's turn.

To the rest of the host the sandbox looks as if it were reached over unix sockets. The frames, and the bound on what
either side may have on its way, are guest/wire/mux.py's; a guest that breaks them is hung up on.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

from agent_tools.engines.engine import Stdio, StreamLost
from agent_tools.guest.wire.framing import FrameError
from agent_tools.guest.wire.lines import MAX_LINE
from agent_tools.guest.wire.mux import MAX_OUT, Mux
from agent_tools.guest.wire.words import Ready, read_report
from agent_tools.machine.background import start_thread
from agent_tools.machine.event_loop import READ, WRITE, WatchedDescriptors, join, leave
from agent_tools.machine.fork_hook import abandon_after_fork
from agent_tools.runtime.transport.datagram_pair import DatagramSocket

READS_PER_STEP = 4  # pieces of up to 256 KiB
STEP_SECONDS = 0.05  # after which a step takes no further piece: there are frames of few bytes


class Relay:
    """Owns the stdio, until it ends or `close` is called. `words` leads to a Lifeline.

    `note_lost` is called with the reason, a clause, if the way to the sandbox breaks.
    """

    def __init__(self, stdio: Stdio, words: DatagramSocket, note_lost: Callable[[str], object] = bool) -> None:
        self._stdio = stdio
        self._words = words
        self._note_lost = note_lost
        self._lock = threading.RLock()  # guards the mux and what is watched, and is never held while waiting
        self._has_more = False
        self._is_new = True  # nothing was heard yet; what the stdio has read on already makes no descriptor ready
        self._is_ended = False
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._hanging_up = threading.RLock()
        words.setblocking(False)
        self._loop = join(self)
        self._watched = WatchedDescriptors(self._loop)
        self._mux = Mux(self._watched.forget)
        abandon_after_fork(self)
        try:
            with self._lock:
                self._watched.want(self._wanted(), self)
        except OSError:
            leave(self._loop, self)
            raise

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
            if self._is_ended:
                end.close()
                return
            self._mux.open(channel, end)
            self._watched.want(self._wanted(), self)

    def close(self) -> None:
        """Hang up, which ends the sandbox."""
        self._end()
        self._hang_up()

    def advance(self, ready: set[int]) -> bool:
        """Do a bounded step of work; return whether there is more to do. Called in the loop's thread."""
        try:
            with self._lock:
                if not self._is_ended:
                    self._exchange(ready)
                    self._watched.want(self._wanted(), self)
                return self._has_more and not self._is_ended
        except (OSError, FrameError) as exc:
            if isinstance(exc, StreamLost):
                self._note_lost(str(exc))
            self.fail()
            return False

    def fail(self) -> None:
        """End the relay, and close it in another thread: ending an ssh process takes a while."""
        if self._end() and not start_thread(self._hang_up, "agent-tools-hang-up"):
            self._hang_up()

    def _end(self) -> bool:
        """Let go of everything but the stdio; return False if that was done before."""
        with self._lock:
            if self._is_ended:
                return False
            self._is_ended = True
            self._mux.close_all()
            self._watched.forget_all()
            self._words.close()  # the lifeline sees the end
        leave(self._loop, self)
        self._ended.set()
        return True

    def _hang_up(self) -> None:
        with self._hanging_up:
            self._stdio.close()

    def _wanted(self) -> dict[int, int]:
        readers, writers = self._mux.wants()
        waiting = len(self._mux.out)
        events: dict[int, int] = {self._stdio.fileno(): READ}
        if waiting or self._is_new:  # a new one can be written to, so that it gets a first step at once
            writer = self._stdio.writer()
            events[writer] = events.get(writer, 0) | WRITE
        if waiting < MAX_OUT:
            events[self._words.fileno()] = READ
        for wanted, mask in ((readers, READ), (writers, WRITE)):
            for end in wanted:
                events[end.fileno()] = events.get(end.fileno(), 0) | mask
        return events

    def _exchange(self, ready: set[int]) -> None:
        if self._has_more or self._is_new or self._stdio.fileno() in ready:
            self._hear()
        self._take_words()
        self._mux.exchange(ready)
        while self._mux.out and (sent := self._stdio.send(self._mux.out)):
            del self._mux.out[:sent]

    def _hear(self) -> None:
        """Take in what the sandbox says, but not forever."""
        self._has_more = self._is_new = False
        over = time.monotonic() + STEP_SECONDS
        for number in range(READS_PER_STEP):
            if number and time.monotonic() > over:
                break
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
                self._words.send(words[:MAX_LINE])

    def _take_words(self) -> None:
        """Take all that is there: an order goes out before the first bytes of the channels it opens."""
        with contextlib.suppress(BlockingIOError):
            while len(self._mux.out) < MAX_OUT:
                words = self._words.recv(MAX_LINE)
                if not words:
                    raise OSError("the host hung up")
                self._mux.say(words)

    def abandon(self) -> None:
        """In a forked child: let go of everything inherited, without a word to the sandbox."""
        self._words.close()
        self._mux.close_all()
        self._stdio.close()
