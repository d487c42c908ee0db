"""PID 1's side of checkpoints: keeps the copies of the kernel, and makes one of them the kernel.

Any process of the sandbox may get at the socket on which it listens. What comes on it is read as bounded words, and
who sent it is told by the operating system. PID 1 makes the socket that a copy waits on, and sends the kernel its end,
one at a time: nothing that code has made is held here. A process that makes itself a copy in place of one is held like
one, and may be the kernel, which it could have been before.
"""

import contextlib
import re
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..wire.sockets import await_hang_up, pair
from ..wire.words import NO_COPY
from . import datagrams
from .datagrams import BRANCH

MAX_COPIES = 2  # of one kernel: the latest run can be undone
MAX_MARKED = 16  # that are kept beside these
MAX_WORDS_AT_ONCE = 16
COPY_ENDED = "its process had ended"  # of a copy that was to go on while the kernel lived, which has ended as well
LINES_AHEAD = 1  # that the kernel has for its next copies
_WORD = re.compile(rb"(copy) (\d{1,9}) (\d{1,18})|(skipped) ([a-z]{1,20})|(awake)|(running)")


@dataclass(frozen=True)
class Copy:
    """A copy after a run. `line` is PID 1's end of the line that it waits on."""

    pid: int
    run: int
    line: socket.socket


class Keeper:
    """The copies of one kernel, the oldest first."""

    def __init__(self) -> None:
        self.copies: list[Copy] = []
        self.marked: dict[int, Copy] = {}
        """Those that are kept, by their runs."""
        self._line: socket.socket | None = None
        self._ahead: dict[int, socket.socket] = {}
        """Our ends of the lines that no copy has yet, by their numbers."""
        self._made = 0  # lines, in all
        self.ran_at = 0.0
        """When the kernel last said that code runs which may change much memory (monotonic seconds)."""
        self.skipped = ""
        """Why no copy was taken after the latest run, '' if one was."""
        self._woken = 0  # the copy whose fork is to say that it is the kernel
        self._was_exact = False  # whether the kernel lived that this copy was to replace

    @property
    def pids(self) -> set[int]:
        """The processes that must outlive the kernel."""
        return {copy.pid for copy in self._held()}

    def fileno(self) -> int:
        """Return the descriptor on which words come, -1 if there is none."""
        return self._line.fileno() if self._line else -1

    def connect(self) -> socket.socket:
        """Listen to another kernel from now on; return its end of the socket, which the caller closes."""
        self._hang_up()
        self._line, theirs = datagrams.pair()
        self._send_lines()
        return theirs

    def hear(self) -> int:
        """Read messages; return the pid of a process that says it is the kernel now, or 0."""
        awake = 0
        for _ in range(MAX_WORDS_AT_ONCE):
            if self._line is None:
                break
            try:
                word = datagrams.receive(self._line)
            except BlockingIOError:
                break
            if word is None:
                self._hang_up()
            else:
                awake = self._take(*word) or awake
        self._send_lines()
        if awake:
            self._woken = 0
        return awake

    def wake(self, run: int, descriptors: Sequence[int], *, is_exact: bool) -> bool:
        """Make the copy after this run the kernel, or the newest before it; return False if there is none.

        It is the newest from now on; later copies are dropped.
        """
        self._was_exact = is_exact
        for copy in self._candidates(run, is_exact=is_exact):
            with contextlib.suppress(OSError):
                socket.send_fds(copy.line, [b"wake %s" % self.skipped.encode()], descriptors, socket.MSG_DONTWAIT)
                before = self.copies
                self.copies = [each for each in before if each.run < copy.run] + [copy]
                self._release(before)
                self._woken = copy.pid
                return True
            self._remove([copy])
        return False

    def complaint(self) -> str:
        """Return the report for the host on a woken copy that did not become the kernel."""
        return COPY_ENDED if self._was_exact else f"{NO_COPY} {self.skipped}"

    def branch(self, run: int, descriptors: Sequence[int]) -> bool:
        """Let the copy after exactly this run fork the supervisor of a branch; return False if there is none."""
        for copy in self._candidates(run, is_exact=True):
            with contextlib.suppress(OSError):
                socket.send_fds(copy.line, [BRANCH], descriptors, socket.MSG_DONTWAIT)
                return True
        return False

    def has(self, run: int) -> bool:
        """Return whether there is a copy after exactly this run."""
        return bool(self._candidates(run, is_exact=True))

    def mark(self, run: int) -> bool:
        """Keep the copy after this run; return whether there is one. Beyond the limit the oldest is dropped."""
        for copy in self._candidates(run, is_exact=True):
            self.marked[run] = copy
            if len(self.marked) > MAX_MARKED:
                self._release([self.marked.pop(next(iter(self.marked)))])
            return True
        return False

    def drop(self) -> None:
        """End all copies."""
        held, self.copies, self.marked = self._held(), [], {}
        self._release(held)
        self.skipped, self._woken = "", 0

    def forget(self, pid: int) -> bool:
        """Handle the end of a process; return whether it was the copy that should have become the kernel."""
        self._remove([copy for copy in self._held() if copy.pid == pid])
        is_lost = pid == self._woken
        if is_lost:
            self._woken = 0
        return is_lost

    def close(self) -> None:
        """Close everything, in a fork."""
        self._hang_up()
        for copy in self._held():
            copy.line.close()

    def ranked(self) -> list[int]:
        """Return the pids of all copies, the newest last."""
        return [*(copy.pid for copy in self.marked.values() if copy not in self.copies), *(c.pid for c in self.copies)]

    def _take(self, word: bytes, pid: int) -> int:
        match = _WORD.fullmatch(word)
        if match and match[1] and pid > 1 and (line := self._ahead.pop(int(match[3]), None)):
            self.copies.append(Copy(pid, int(match[2]), line))
            self.skipped = ""
            old, self.copies = self.copies[:-MAX_COPIES], self.copies[-MAX_COPIES:]
            self._release(old)
        elif match and match[4]:
            self.skipped = match[5].decode()
        elif match and match[7]:
            self.ran_at = time.monotonic()
        return pid if match and match[6] else 0

    def _send_lines(self) -> None:
        """Send the kernel the lines that it lacks for its next copies, also for those of which no copy came about.

        The sender of a word that is sent at the same moment is not told (datagrams.py). None that counts is: a fork
        says that it is the kernel before it takes its first line, and only who has the one line is a copy.
        """
        self._forget_unused_lines()
        with contextlib.suppress(OSError):  # it does not read, or has ended: then it takes no copies
            while self._line and len(self._ahead) < LINES_AHEAD:
                self._ahead[self._made + 1] = _sent_line(self._line, self._made + 1)
                self._made += 1

    def _forget_unused_lines(self) -> None:
        """Let go of the lines whose other end was closed: by a kernel whose fork failed, or by a copy's end."""
        for number, ours in list(self._ahead.items()):
            if await_hang_up(ours.fileno(), 0):
                self._ahead.pop(number).close()

    def _candidates(self, run: int, *, is_exact: bool) -> list[Copy]:
        """Return the copies that know of this run, the newest first, or of runs before it."""
        if is_exact:
            return [copy for copy in self._held() if copy.run == run][:1]
        return [copy for copy in reversed(self.copies) if copy.run <= run]

    def _held(self) -> list[Copy]:
        return [*self.copies, *self.marked.values()]

    def _remove(self, copies: Sequence[Copy]) -> None:
        self.copies = [copy for copy in self.copies if copy not in copies]
        self.marked = {run: copy for run, copy in self.marked.items() if copy not in copies}
        self._release(copies)

    def _release(self, copies: Sequence[Copy]) -> None:
        """End the copies that are no longer kept."""
        held = self._held()
        for copy in copies:
            if copy not in held:
                copy.line.close()

    def _hang_up(self) -> None:
        if self._line:
            self._line.close()
            self._line = None
        for ours in self._ahead.values():
            ours.close()
        self._ahead = {}


def _sent_line(kernel: socket.socket, number: int) -> socket.socket:
    """Make a line and send its other end; return ours, to which nothing can be sent.

    Raises:
        OSError: it cannot be sent now.
    """
    ours, theirs = pair(socket.SOCK_SEQPACKET)
    with theirs, contextlib.ExitStack() as undo:
        undo.enter_context(ours)
        ours.shutdown(socket.SHUT_RD)
        datagrams.send(kernel, b"%d" % number, [theirs.fileno()])
        undo.pop_all()
    return ours
