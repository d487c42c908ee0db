"""The memory of the sandbox and of its processes, in bytes."""

import contextlib
import os

MIN_SMALL = 16 * 1024 * 1024
SMALL_SHARE = 100  # of the limit; what is small is its hundredth, or MIN_SMALL
_STATS = (
    ("/sys/fs/cgroup/memory.stat", b"anon ", "/sys/fs/cgroup/memory.max"),
    ("/sys/fs/cgroup/memory/memory.stat", b"rss ", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def written() -> "int | None":
    """Return what the processes of the sandbox have written, in all; None where nobody tells."""
    for path, name, _ in _STATS:
        with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
            for line in file:
                if line.startswith(name):
                    return int(line.split()[1])
    return None


def written_by(pid: "int | str" = "self") -> int:
    """Return what a process has written."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/statm", "rb") as file:
        _, resident, shared = map(int, file.read().split()[:3])
        return (resident - shared) * _PAGE
    return 0


def small() -> int:
    """Return how much is small beside the limit."""
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


def rank(pid: int, score: int) -> None:
    """Set a process's oom_score_adj, proc(5): at the memory limit those with a higher one end first."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write(str(score))
