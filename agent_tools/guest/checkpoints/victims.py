"""The order in which the kernel and its copies end at the memory limit.

Theory of operation
    A copy shares its memory with the kernel. What the kernel writes or frees since is the copy's alone: its own part.
    While that is small, ending the copy would gain nothing, and code that asks for more and more would end the kernel
    next, with all variables. So the kernel goes first. Once the copy's part is larger, the copy goes first: code that
    fits into the memory without copies fits with them, but for what is small (memory.py).

    The copy's part is what all processes have written, less what the kernel has, less the same difference when the
    copy was taken. Processes that the code has started count as the copy's, which is the safe side.

    Between a copy that may come to hold much and its kernel go a few scapegoats (scapegoat.py). They are there before
    code runs: once it takes all memory, PID 1 may be too late.
"""

import os
from collections.abc import Sequence

from . import memory
from .scapegoat import Scapegoats

LOOK_EVERY = 0.025  # seconds between two looks, while code runs
KERNEL, COPY_LAST, COPY_FIRST, KERNEL_LAST = 500, 300, 1000, 0  # oom_score_adj, proc(5)


class Victims:
    """Ranks a kernel and its copies."""

    def __init__(self) -> None:
        self._small = memory.small()
        self._ranked: list[int] = []
        self._else = 0  # what others had written when the newest copy was taken
        self._is_copy_first = False
        self._scapegoats = Scapegoats()

    def look(self, kernel: int, copies: Sequence[int]) -> None:
        """Rank them, the newest copy last in `copies`."""
        if [kernel, *copies] != self._ranked:
            self._rank_anew(kernel, copies)
        elif copies and not self._is_copy_first and self._part_of_copy(kernel) > self._small:
            self._rank(kernel, copies, is_copy_first=True)

    def _rank_anew(self, kernel: int, copies: Sequence[int]) -> None:
        self._ranked = [kernel, *copies]
        written = memory.written()
        held = memory.written_by(kernel)
        self._else = (written or 0) - held
        self._rank(kernel, copies, is_copy_first=written is None)
        self._scapegoats.want(bool(copies) and held > self._small)

    def _rank(self, kernel: int, copies: Sequence[int], *, is_copy_first: bool) -> None:
        self._is_copy_first = is_copy_first
        for pid in copies[:-1]:
            memory.rank(pid, COPY_FIRST)
        for pid in copies[-1:]:
            memory.rank(pid, COPY_FIRST if is_copy_first else COPY_LAST)
        if kernel:
            memory.rank(kernel, KERNEL_LAST if is_copy_first and copies else KERNEL)

    def forget(self, pid: int) -> bool:
        """Note that a process has ended; return whether it was to go before the kernel."""
        return self._scapegoats.forget(pid) or pid in self._ranked[1:]

    def _part_of_copy(self, kernel: int) -> int:
        return (memory.written() or 0) - self._else - memory.written_by(kernel)


def prefer_others() -> None:
    """Have this process, which holds a kernel, end after kernels and copies."""
    memory.rank(os.getpid(), KERNEL_LAST)
