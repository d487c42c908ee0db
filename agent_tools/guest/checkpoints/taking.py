"""Takes checkpoints in the kernel, between two requests.

A request that comes while a copy is taken waits for it. So a copy is taken in a pause between requests. Where requests
follow one another without one, the first cells have their copies at once, so that a crash or `undo` costs one of them;
after these there is a copy once a second. Once the host has gone back or has asked for a copy, each request has one.
"""

import contextlib
import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..wire.sockets import await_input
from . import hot_pages, oom_priority
from .blockers import code_has_children, code_has_threads, end_idle, end_waiting, forget_trackers, living, unknown
from .datagrams import AWAKE, CHILDREN, MAX_BYTES, MEMORY, THREADS, TIME
from .frozen import Line, Woken, freeze
from .pools import living_pools, restart_pools

if TYPE_CHECKING:
    from ..kernel.message_writer import MessageWriter

PAUSE = 0.05  # seconds without a request
LATEST = 1.0  # seconds of requests without a copy, after which the next copy does not wait for a pause
FIRST = 8  # cells after a pause of PAUSE that have their copies at once
LINE_SECONDS = 1.0  # for which the line of the next copy is waited for
_UNSAFE = 3  # exit code of the fork that found threads beside the kernel's own


class Pace:
    """Decides how long a copy waits for a pause between requests."""

    def __init__(self, *, is_exact: bool = False) -> None:
        self.is_exact = is_exact
        """Whether no copy waits."""
        self._ended = time.monotonic()
        self._in_a_row = 0  # cells since the last pause
        self._is_cell = False
        self._unsaved = 0.0  # when the first request began that no copy knows of; 0.0: there is none

    def begin(self) -> None:
        """Note that a request begins."""
        now = time.monotonic()
        if now >= self._ended + PAUSE:
            self._in_a_row = 0
        self._unsaved = self._unsaved or now

    def wait(self, seconds: float) -> None:
        """Note a time in which the next request may have waited for a copy: it belongs to no pause."""
        self._ended += seconds

    def end(self, *, is_cell: bool) -> None:
        """Note that a request has ended."""
        self._ended, self._is_cell = time.monotonic(), is_cell
        self._in_a_row += is_cell

    def note_copy(self) -> None:
        """Note that a copy is made."""
        self._unsaved = 0.0

    @property
    def is_slow(self) -> bool:
        """True while requests come with pauses. The second cell counts: a kernel's first pages are of its start."""
        return self._in_a_row <= 2

    def timeout(self) -> float:
        """Return the seconds until a copy may be taken."""
        now = time.monotonic()
        is_late = self._unsaved and now - self._unsaved >= LATEST
        if self.is_exact or is_late or (self._is_cell and self._in_a_row <= FIRST):
            return 0.0
        return max(0.0, self._ended + PAUSE - now)


class Checkpoints:
    """Takes a copy after each request that needs one, at its pace."""

    def __init__(self, shared: "MessageWriter") -> None:
        self._shared = shared
        self._keeper: socket.socket | None = None
        self._pace = Pace()
        self.run = 0
        """The number of the latest request after which a copy was wanted."""
        self._is_due = False
        self._maker = 0  # the pid of the child that forks the copy, until it has ended
        self._small = oom_priority.written_by() + oom_priority.small_size()
        self._is_large = False
        self._oom_kills = 0  # when the latest copy was taken
        self._is_lost = False  # whether the memory limit may have ended it since
        self._told = ""  # why there is no later copy
        self._unsure: frozenset[str] = frozenset()  # threads that may end at a fork
        self._unsafe: frozenset[str] = frozenset()  # those that have not
        self._hot: hot_pages.Ranges = []  # what is written between two copies

    def connect(self, descriptor: int) -> None:
        """Use this descriptor for messages to PID 1 from now on, and report that this process is the kernel."""
        self._keeper, self._told = socket.socket(fileno=os.dup(descriptor)), ""
        self._say(AWAKE)

    def note(self, run: object, is_urgent: object = False, *, is_cell: bool) -> None:
        """Request a copy after the request with this number, at once if it is urgent; none without a number."""
        if isinstance(run, int) and run > 0:
            self.run, self._is_due = run, True
            self._pace.end(is_cell=is_cell)
            self._is_lost = self._is_large and oom_priority.oom_kills() > self._oom_kills
            if is_urgent is True:
                self._pace.is_exact = True

    def timeout(self) -> float | None:
        """Return the seconds until the next copy; None if none is needed.

        None is after a request whose reply cannot have arrived: the host will say that it was undone.
        """
        if not (self._is_due and self._keeper) or self._shared.is_closed:
            return None
        return 0.0 if self._is_lost else self._pace.timeout()

    def begin(self, is_urgent: object = False) -> None:
        """Record that a request has come, perhaps before a copy could be taken; an urgent request requires it.

        Raises:
            Woken: as for `take`.
        """
        if is_urgent is True:
            self._pace.is_exact = True
            if self.timeout() is not None:
                self.take_copy()
                self.settle()
        if self._is_due:
            self._skip(TIME)
        self._pace.begin()
        if self._is_large:
            self._say(b"running")

    def take_copy(self) -> None:
        """Fork a copy, unless threads or child processes would be lost.

        Raises:
            Woken: in the process that is the kernel from now on.
        """
        began = time.monotonic()
        self._is_due = False
        self._pace.note_copy()
        try:
            if reason := self._blocker():
                self._skip(reason)
            else:
                self._is_large = oom_priority.written_by() > self._small
                self._oom_kills = oom_priority.oom_kills() if self._is_large else 0
                if self._pace.is_slow:
                    self._hot = [] if self._is_large else hot_pages.own_pages()
                self._fork()
        except TimeoutError:  # PID 1 has sent no line yet
            self._skip(TIME)
        except OSError:  # no room for a process
            self._skip(MEMORY)
        self._pace.wait(time.monotonic() - began)

    def copy_ahead(self) -> None:
        """Use a pause after a copy to make the pages the kernel's own again that it will write to."""
        hot_pages.copy_ahead(self._hot)

    def settle(self) -> None:
        """Wait until the copy is ready and none of the code's children: before anything else runs."""
        if not self._maker:
            return
        maker, self._maker, began = self._maker, 0, time.monotonic()
        try:
            _, status = os.waitpid(maker, 0)
        except ChildProcessError:  # native code has waited for it
            return
        self._pace.wait(time.monotonic() - began)
        if os.waitstatus_to_exitcode(status) == _UNSAFE:
            self._unsafe = living(self._unsure, os.getpid())
            self._skip(THREADS)

    def _blocker(self) -> str:
        end_waiting()
        if code_has_threads():
            return THREADS
        if code_has_children():
            return CHILDREN
        end_idle()
        self._unsure = unknown()
        return THREADS if self._unsafe & self._unsure else ""

    def _line(self) -> Line:
        """Return the line for the next copy, which PID 1 sends after each one.

        Raises:
            TimeoutError: it has not come.
            OSError: it will not come.
        """
        assert self._keeper
        if not await_input(self._keeper.fileno(), LINE_SECONDS):
            raise TimeoutError
        number, descriptors, _, _ = socket.recv_fds(self._keeper, MAX_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        if not descriptors:
            raise OSError("PID 1 has hung up")
        return int(number), socket.socket(fileno=descriptors[0])

    def _fork(self) -> None:
        number, line = self._line()
        with line, self._unhandled_children():
            self._fork_copy(number, line)

    @contextlib.contextmanager
    def _unhandled_children(self) -> Iterator[None]:
        """Hide the end of the forking child from code that handles, or ignores, SIGCHLD."""
        handler = signal.getsignal(signal.SIGCHLD)
        if handler in (signal.SIG_DFL, None):
            yield
            return
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            yield
            self.settle()
        finally:
            signal.signal(signal.SIGCHLD, handler)

    def _fork_copy(self, number: int, line: socket.socket) -> None:
        assert self._keeper
        kernel, seeded, left = os.getpid(), random.getstate(), living_pools()  # a fork is seeded anew
        with self._shared.lock:
            self._maker = os.fork()
        self._told = ""
        if self._maker:
            return
        try:
            self._maker = 0
            if living(self._unsure, kernel):
                os._exit(_UNSAFE)
            ready, done = os.pipe()
            if os.fork():
                os.close(done)
                os.read(ready, 1)
                os._exit(0)
            os.close(ready)
        except BaseException:  # noqa: BLE001  (this process is not the kernel)
            os._exit(1)
        try:
            freeze(self._keeper, self.run, (number, line), done)
        except Woken:
            random.setstate(seeded)
            forget_trackers()
            restart_pools(left)
            self._pace = Pace(is_exact=True)
            raise

    def _skip(self, reason: str) -> None:
        self._is_due = False
        if reason != self._told:  # else PID 1 knows
            self._told = reason
            self._say(b"skipped %s" % reason.encode())

    def _say(self, word: bytes) -> None:
        if self._keeper:
            try:
                self._keeper.send(word, socket.MSG_DONTWAIT)
            except OSError:  # code has closed it
                self._keeper = None
