"""Deleted files that a sandbox's processes still hold open: they use disk space, and no folder shows them.

Theory of operation
    The host reads /proc. Root sees every process. Linux shows any other caller the descriptors and mappings of a
    process under three conditions (`__ptrace_may_access` in the kernel): it has the caller's user and group, which a
    sandbox of an ordinary user has and cannot change; it has no capability that the caller lacks; its memory is
    "dumpable". In a sandbox only PID 1 is not dumpable, and a fork of PID 1 in its first moments. Code that makes a
    process of its own so (PR_SET_DUMPABLE, or a program that it may execute and not read) hides what it holds.

    A thread that is ending looks the same: it has no memory any more, and its descriptors belong to root until its
    parent has waited for it. It runs no more code and soon holds nothing, so it hides nothing. The leader of a
    process may end long before the other threads: each thread is looked at by itself.

    Where the engine maps users to others, a sandbox has another user than the caller. The caller sees none of its
    files then, and regards no process as hidden. Descriptors on their way through a unix socket belong to no
    process: they are never seen.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

_GONE = contextlib.suppress(FileNotFoundError, ProcessLookupError)  # closed, or ended, during the check
_BLOCK = 512  # bytes: the unit of st_blocks
_PF_EXITING = 0x4  # among a thread's flags: it runs no more code
_DELETED = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) (\S+) (\d+) .* \(deleted\)\n")


@dataclass(frozen=True)
class DeletedFiles:
    """Bytes on disk of deleted files, and whether a process is hidden from the check."""

    bytes: int = 0
    is_hidden: bool = False


@dataclass(frozen=True)
class _Sizes:
    """Bytes by inode: bytes on disk, or up to the end of a mapping for a file whose size Linux does not show."""

    device: int
    on_disk: dict[int, int] = field(default_factory=dict)
    mapped: dict[int, int] = field(default_factory=dict)

    def add(self, facts: os.stat_result) -> None:
        """Note a file, if it is a deleted one of this device."""
        if stat.S_ISREG(facts.st_mode) and facts.st_nlink == 0 and facts.st_dev == self.device:
            self.on_disk[facts.st_ino] = max(facts.st_blocks * _BLOCK, self.on_disk.get(facts.st_ino, 0))

    def total(self) -> int:
        """Return the bytes of all files, each counted once."""
        return sum({**self.mapped, **self.on_disk}.values())


def deleted_files(first: int, device: int) -> DeletedFiles:
    """Return the deleted files that a process and its descendants hold on one device.

    A process that ends during the search holds nothing. `first` itself is trusted, and may be hidden. A fork of it is
    hidden for a moment, so a single check proves nothing.
    """
    sizes = _Sizes(device)
    hidden = {pid for pid in family(first) if not _add_files(sizes, pid)}
    return DeletedFiles(sizes.total(), is_hidden=bool(hidden - {first}))


def family(first: int) -> Iterator[int]:
    """Return the pids of a process and of all its descendants."""
    waiting = [first]
    while waiting:
        pid = waiting.pop()
        yield pid
        for task in _tasks(pid):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as children:
                waiting += map(int, children.read().split())


def _tasks(pid: int) -> list[str]:
    """Its threads: each may have descriptors, and children, of its own."""
    with contextlib.suppress(OSError):
        return os.listdir(f"/proc/{pid}/task")
    return []


def _add_files(sizes: _Sizes, pid: int) -> bool:
    """Add the files of a process; return False if it hides them."""
    tasks = [f"/proc/{pid}/task/{task}" for task in _tasks(pid)]
    unseen = [task for task in tasks if not _add_open_files(sizes, task)]
    for task in tasks:  # all threads have the same mappings, except those that are ending
        if _add_mapped_files(sizes, task):
            break
    return not unseen or not _is_ours(pid) or all(_is_ending(task) for task in unseen)


def _add_open_files(sizes: _Sizes, task: str) -> bool:
    """Add the files that a thread has open; return False if they cannot be seen."""
    try:
        with _GONE:
            for number in os.listdir(f"{task}/fd"):
                with _GONE:
                    sizes.add(os.stat(f"{task}/fd/{number}"))
    except PermissionError:
        return False
    return True


def _add_mapped_files(sizes: _Sizes, task: str) -> bool:
    """Add the files that a thread's process has mapped, and may have closed; return False if it has no mapping."""
    lines: list[str] = []
    with _GONE, contextlib.suppress(PermissionError), open(f"{task}/maps", errors="replace", newline="\n") as maps:
        lines = maps.readlines()  # of all line breaks, only "\n" is escaped in names
    found = [line for line in lines if line.endswith(" (deleted)\n")]  # among hundreds, usually none
    for start, end, offset, numbers, inode in (match.groups() for match in map(_DELETED.fullmatch, found) if match):
        first, last = int(start, 16), int(end, 16)
        try:
            sizes.add(os.stat(f"/proc/{os.path.basename(task)}/map_files/{first:x}-{last:x}"))
        except (PermissionError, FileNotFoundError, ProcessLookupError):  # shown only to root
            if numbers == f"{os.major(sizes.device):02x}:{os.minor(sizes.device):02x}":
                length = int(offset, 16) + last - first
                sizes.mapped[int(inode)] = max(length, sizes.mapped.get(int(inode), 0))
    return bool(lines)


def _is_ours(pid: int) -> bool:
    """Return whether a process has the caller's user and group; its folder has both even if it hides."""
    with _GONE:
        found = os.stat(f"/proc/{pid}")
        return (found.st_uid, found.st_gid) == (os.geteuid(), os.getegid())
    return False


def _is_ending(task: str) -> bool:
    """Return whether a thread runs no more code: Linux sets this before it takes the thread's memory away."""
    with _GONE, open(f"{task}/stat", "rb") as file:
        flags = int(file.read().rpartition(b")")[2].split()[6])
        return bool(flags & _PF_EXITING)
    return True
