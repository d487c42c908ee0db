"""Files that a sandbox's processes have deleted and still hold: they fill the disk, and no folder shows them.

They are read on this side, from /proc. Root sees all of them. Any other caller sees those of its own user's processes;
such a process can end that (PR_SET_DUMPABLE), but not without being noticed. Descriptors on their way through a unix
socket belong to no process, and are not seen.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass

_GONE = contextlib.suppress(FileNotFoundError, ProcessLookupError)  # closed, or ended, while it is looked at
_BLOCK = 512  # bytes: the unit of st_blocks
_DELETED = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) (\S+) (\d+) .* \(deleted\)$", re.MULTILINE)


@dataclass(frozen=True)
class Held:
    """Bytes on disk of deleted files, and whether a process keeps from being looked at."""

    bytes: int = 0
    is_hidden: bool = False


def held_files(first: int, device: int) -> Held:
    """Return what a process and its descendants hold on one device. One that is gone meanwhile holds nothing.

    `first` itself is trusted, and may be one that cannot be looked at.
    """
    sizes: dict[int, int] = {}
    hidden = {pid for pid in family(first) if not _add(sizes, pid, device)}
    return Held(sum(sizes.values()), is_hidden=bool(hidden - {first}))


def _add(sizes: dict[int, int], pid: int, device: int) -> bool:
    """Note the sizes of a process's files, by inode; whether it could be looked at."""
    try:
        for inode, size in itertools.chain(_open_files(pid, device), _mapped_files(pid, device)):
            sizes[inode] = max(size, sizes.get(inode, 0))
    except PermissionError:
        return False
    return True


def family(first: int) -> Iterator[int]:
    """The pids of a process and of all its descendants."""
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


def _open_files(pid: int, device: int) -> Iterator[tuple[int, int]]:
    for task in _tasks(pid):
        with _GONE:
            folder = f"/proc/{pid}/task/{task}/fd"
            for number in os.listdir(folder):
                with _GONE:
                    yield from _deleted(os.stat(f"{folder}/{number}"), device)


def _mapped_files(pid: int, device: int) -> Iterator[tuple[int, int]]:
    """Files that may be open no more. Only root is told their sizes; for others it is as far as they are mapped."""
    found = []
    with _GONE, open(f"/proc/{pid}/maps", errors="replace") as maps:
        found = _DELETED.findall(maps.read())
    for start, end, offset, numbers, inode in found:
        first, last = int(start, 16), int(end, 16)
        try:
            with _GONE:
                yield from _deleted(os.stat(f"/proc/{pid}/map_files/{first:x}-{last:x}"), device)
        except PermissionError:
            if numbers == f"{os.major(device):02x}:{os.minor(device):02x}":
                yield int(inode), int(offset, 16) + last - first


def _deleted(facts: os.stat_result, device: int) -> Iterator[tuple[int, int]]:
    if stat.S_ISREG(facts.st_mode) and facts.st_nlink == 0 and facts.st_dev == device:
        yield facts.st_ino, facts.st_blocks * _BLOCK
