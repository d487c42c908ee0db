"""The memory limit under gVisor, which PID 1 enforces: the engine's would end the sandbox (wire/gvisor.py).

Theory of operation
    gVisor counts the memory of a sandbox, files in memory included. PID 1 looks as often as code needs to fill what
    is free, and kills the process that has written most. Copies of the kernel go first if they alone hold much. All
    others are stopped meanwhile: PID 1 has no priority there, and beside a fork bomb a look took too long.
"""

import contextlib
import math
import signal
import time
from collections.abc import Callable, Collection

from ..checkpoints.oom_priority import in_files, written_by
from ..gvisor import is_gvisor
from ..processes import processes, signal_all
from ..wire.gvisor import code_limit

TOTAL, USAGE = "proc/meminfo", "sys/fs/cgroup/memory/memory.usage_in_bytes"
MOST_A_SECOND = 2 * 1024**3  # bytes that code can fill, at most about
CHECK_SECONDS = (0.025, 1.0)  # seconds between two looks, at least and at most
LARGE = 0.25  # of the limit: a fork that changes nothing holds some 50 MiB here
REST = 0.25  # seconds for a killed process to let go of its memory


def pause(free: float) -> float:
    """Return the seconds until the next look, if code may take `free` bytes more."""
    if free < 0:
        return REST
    least, most = CHECK_SECONDS
    return min(most, max(least, free / MOST_A_SECOND))


class MemoryLimit:
    """Watches the memory of a sandbox; idle where the kernel is Linux, and in supervisors of branches."""

    def __init__(
        self,
        signal_others: Callable[[int], None],
        root: str = "/",
        *,
        has_pid_1: bool = False,
        in_files: Callable[[], int] = in_files,
    ) -> None:
        self._root = root
        self._signal = signal_others
        self._in_files = in_files
        self._limit = code_limit(self._total()) if has_pid_1 and is_gvisor(root) else math.inf
        self._next = 0.0
        self._killed: set[int] = set()

    def seconds(self) -> list[float]:
        """Return the seconds until the next look."""
        return [] if self._limit == math.inf else [self._next - time.monotonic()]

    def look(self, copies: Collection[int]) -> None:
        """Kill a process, or the copies, if the sandbox has more than its limit."""
        now = time.monotonic()
        if self._limit == math.inf or now < self._next:
            return
        usage = self._usage()
        self._next = now + pause(self._limit - usage)
        if usage > self._limit:
            self._end_largest(usage, copies)

    def forget(self, pid: int) -> bool:
        """Note that a process has ended; return whether it was killed here."""
        was_killed = pid in self._killed
        self._killed.discard(pid)
        return was_killed

    def _end_largest(self, usage: int, copies: Collection[int]) -> None:
        self._signal(signal.SIGSTOP)
        sizes = {pid: written_by(pid) for pid in processes({1}) if pid not in copies}
        if copies and usage - sum(sizes.values()) - self._in_files() > self._limit * LARGE:
            signal_all(copies, signal.SIGKILL)
        elif sizes:
            largest = max(sizes, key=lambda pid: sizes[pid])
            self._killed.add(largest)
            signal_all([largest], signal.SIGKILL)
        self._signal(signal.SIGCONT)

    def _usage(self) -> int:
        with contextlib.suppress(OSError, ValueError), open(self._root + USAGE) as file:
            return int(file.read())
        return 0

    def _total(self) -> int:
        """Return the engine's limit, which gVisor shows as the size of all memory."""
        with open(self._root + TOTAL) as file:
            return int(file.readline().split()[1]) * 1024
