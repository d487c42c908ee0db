"""Memory of the sandbox's processes (bytes), and the order in which they end at the memory limit.

Theory of operation
    A copy shares its memory with the kernel. What the kernel writes or frees later is held by the copy alone: its own
    part. While that part is small, ending the copy would free nothing, and code that asks for more and more would end
    the kernel next, with all variables. So the kernel ranks first. Once the copy's part is larger, the copy ranks
    first: code that fits into the memory without copies fits with them, except for `small_size` bytes.

    The copy's part is what all processes but the kernel have written now, minus the same value when the copy was made.
    Processes that the code has started count as the copy's, which is the safe side.

    A few decoys rank between a large copy and its kernel. Linux counts a process that it ended as gone some moments
    before its memory is free, and frees huge pages last; code that asks for more in these moments has the next process
    ended, which would be the kernel. Decoys start before code runs: once code takes all memory, PID 1 may be too late.
"""

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from typing import NoReturn

from ..forks import silence
from ..wire.lines import MAX_NUMBER
from ..wire.words import TEMPORARY_FOLDERS, FolderName

CHECK_SECONDS = 0.025  # seconds between two looks, while code runs
KERNEL, COPY_LAST, COPY_FIRST, KERNEL_LAST = 500, 300, 1000, 0  # oom_score_adj, proc(5)
DECOY = 999  # after the copies, and before a kernel of any size
DECOYS = 3  # each lasts for some milliseconds; a busy machine may need more than one
DECOY_COMMAND = b"/bin/sleep\0infinity\0"
DECOY_PROGRAM = ("/bin/sh", "-c", f"echo {DECOY} >/proc/self/oom_score_adj; exec /bin/sleep infinity")
"""It ranks itself: PID 1 cannot before its exec, since a fork of PID 1 allows no access either."""
MIN_SMALL = 16 * 1024 * 1024
SMALL_SHARE = 100  # a size is small up to this fraction of the limit, or MIN_SMALL
_STATS = (
    ("/sys/fs/cgroup/memory.stat", b"anon ", "/sys/fs/cgroup/memory.max"),
    ("/sys/fs/cgroup/memory/memory.stat", b"rss ", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_EMPTY_FILE = 1024  # bytes that the kernel keeps of a file in a tmpfs beside its content, about


class OomPriority:
    """Ranks a kernel and its copies."""

    def __init__(self) -> None:
        self._small = small_size()
        self._ranked: list[int] = []
        self._others = 0  # bytes that other processes had written when the newest copy was taken
        self._is_copy_first = False
        self._decoys = Decoys()

    def look(self, kernel: int, copies: Sequence[int]) -> None:
        """Rank them, the newest copy last in `copies`."""
        if [kernel, *copies] != self._ranked:
            self._rank_anew(kernel, copies)
        elif copies and not self._is_copy_first:
            of_copy = (written() or 0) - self._others - written_by(kernel)
            if of_copy > self._small:
                self._rank(kernel, copies, is_copy_first=True)

    def _rank_anew(self, kernel: int, copies: Sequence[int]) -> None:
        self._ranked = [kernel, *copies]
        total, own = written(), written_by(kernel)
        self._others = (total or 0) - own
        self._rank(kernel, copies, is_copy_first=total is None)
        if copies and own > self._small:
            self._decoys.start()
        elif copies or not kernel:  # the memory of a copy that has just ended becomes free only now
            self._decoys.stop()

    def _rank(self, kernel: int, copies: Sequence[int], *, is_copy_first: bool) -> None:
        self._is_copy_first = is_copy_first
        for pid in copies[:-1]:
            rank(pid, COPY_FIRST)
        for pid in copies[-1:]:
            rank(pid, COPY_FIRST if is_copy_first else COPY_LAST)
        if kernel:
            rank(kernel, KERNEL_LAST if is_copy_first and copies else KERNEL)

    def forget(self, pid: int) -> bool:
        """Note that a process has ended; return whether it ranked before the kernel."""
        return self._decoys.forget(pid) or pid in self._ranked[1:]


class Decoys:
    """Sleeping processes that the OOM killer takes first. User code can kill them, at its own cost."""

    def __init__(self) -> None:
        self.pids: set[int] = set()

    def start(self) -> None:
        """Start the missing ones, as far as there is room for processes."""
        with contextlib.suppress(OSError):
            while len(self.pids) < DECOYS:
                pid = os.fork()  # posix_spawn waits until the child is replaced, and code could stop the child before
                if pid == 0:
                    _sleep()
                self.pids.add(pid)

    def stop(self) -> None:
        """Kill all of them."""
        while self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids.pop(), signal.SIGKILL)

    def forget(self, pid: int) -> bool:
        """Note that a process has ended; return whether it is a decoy."""
        is_decoy = pid in self.pids
        self.pids.discard(pid)
        return is_decoy


def _sleep() -> NoReturn:
    try:
        os.setsid()
        silence(0, 1, 2)
        os.execve(DECOY_PROGRAM[0], DECOY_PROGRAM, {})
    finally:
        os._exit(1)


def rank(pid: "int | str", score: int) -> None:
    """Set the oom_score_adj of a process or of `self`, proc(5): at the memory limit higher scores end first."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write(str(score))


def written() -> "int | None":
    """Return the bytes that all processes of the sandbox have written; None where no cgroup file says."""
    for path, name, _ in _STATS:
        with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
            for line in file:
                if line.startswith(name):
                    return int(line.split()[1])
    return None


def written_by(pid: "int | str" = "self") -> int:
    """Return the bytes that a process has written."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/statm", "rb") as file:
        _, resident, shared = map(int, file.read().split()[:3])
        return (resident - shared) * _PAGE
    return 0


def small_size() -> int:
    """Return the bytes that are small beside the memory limit."""
    for _, _, path in _STATS:
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            return max(MIN_SMALL, int(file.read()) // SMALL_SHARE)
    return MIN_SMALL


def oom_kills() -> int:
    """Return how many processes of the sandbox the memory limit has ended so far."""
    for path in _OOM_COUNTERS:
        with contextlib.suppress(OSError, ValueError), open(path) as counters:
            for line in counters:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def fullest_folder() -> "tuple[FolderName, int, int] | tuple[()]":
    """Return the temporary folder whose files take most memory, their number and the MiB; () if none can be asked."""
    return max(_temporary_files(), key=lambda each: each[2], default=())


def in_files() -> int:
    """Return the bytes of memory that the files of temporary folders take, in whole MiB."""
    return sum(mib for *_, mib in _temporary_files()) << 20


def _temporary_files() -> "Iterator[tuple[FolderName, int, int]]":
    for folder in TEMPORARY_FOLDERS:
        with contextlib.suppress(OSError):
            stat = os.statvfs(folder)
            files = stat.f_files - stat.f_ffree
            held = (stat.f_blocks - stat.f_bfree) * stat.f_frsize + files * _EMPTY_FILE
            yield folder, min(files, MAX_NUMBER - 1), min(held >> 20, MAX_NUMBER - 1)
