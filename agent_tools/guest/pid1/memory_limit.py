"""The memory limit under gVisor, which PID 1 enforces: the engine's would end the sandbox (wire/gvisor.py).

Theory of operation
    gVisor counts the memory of a sandbox, files in memory included, and mapped files, such as the libraries of the
    image. Those are Linux's to drop when it needs the room, and do not count. PID 1 looks as often as code needs to
    fill what is free, and kills the process that has written most. Copies of the kernel go first if they alone hold
    much. All others are stopped meanwhile: PID 1 has no priority there, and beside a fork bomb a look took too long.
    The memory of a killed process is free only later, and the copy that takes its place takes a little at once: for a
    time, PID 1 kills another one only if the usage rises by more than that.
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

MEMINFO, USAGE = "proc/meminfo", "sys/fs/cgroup/memory/memory.usage_in_bytes"
MOST_A_SECOND = 2 * 1024**3  # bytes that code can fill, at most about
CHECK_SECONDS = (0.025, 1.0)  # seconds between two looks, at least and at most
LARGE = 0.25  # of the limit, and FORK at least
PATIENCE = 2.0  # seconds for a killed process to let go of its memory
FORK = 64 * 1024**2  # bytes: a fork that changes nothing holds some 50 MiB here


def pause(free: float) -> float:
    """Return the seconds until the next look, if code may take `free` bytes more."""
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
        self._limit = code_limit(self._meminfo(b"MemTotal:")) if has_pid_1 and is_gvisor(root) else math.inf
        self._next = 0.0
        self._until = 0.0  # what was killed has time until then, and
        self._least = 0  # the least usage since, in bytes
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
        free = self._limit - usage + self._meminfo(b"Mapped:")
        self._next = now + pause(free)
        self._least = min(self._least, usage)
        if free >= 0:
            self._until = 0.0
        elif now >= self._until or usage > self._least + FORK:
            self._until, self._least = now + PATIENCE, usage
            self._end_largest(usage, copies)

    def forget(self, pid: int) -> bool:
        """Note that a process has ended; return whether it was killed here."""
        was_killed = pid in self._killed
        self._killed.discard(pid)
        return was_killed

    def _end_largest(self, usage: int, copies: Collection[int]) -> None:
        self._signal(signal.SIGSTOP)
        sizes = {pid: written_by(pid) for pid in processes({1}) if pid not in copies}
        if copies and usage - sum(sizes.values()) - self._in_files() > max(self._limit * LARGE, FORK):
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

    def _meminfo(self, name: bytes) -> int:
        """Return the bytes on a line of meminfo; its MemTotal is the engine's limit. Format: proc(5)."""
        with contextlib.suppress(OSError, ValueError, IndexError), open(self._root + MEMINFO, "rb") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith(name)), 0)
        return 0
