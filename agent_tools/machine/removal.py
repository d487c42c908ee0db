"""Remove a folder with untrusted contents, even while hostile code still changes it.

Folders may be nested to any depth, so nothing recurses and no path is built: each folder is first moved up, directly
into the folder to remove, and emptied there. That takes three descriptors, little memory, and one rename for each
folder, at any depth. Links are never followed. Mount points cannot be renamed, so other file systems are not entered.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agent_tools.machine.folder import OPEN_DIR, PASS_DIR
from agent_tools.machine.machine import IS_LINUX

# Deleted files that a sandbox's processes still hold open: they use disk space, and no folder shows them.
#
# Theory of operation
#     The host reads /proc. Root sees every process. Linux shows any other caller the descriptors and mappings of a
#     process under three conditions (`__ptrace_may_access` in the kernel): it has the caller's user and group, which a
#     sandbox of an ordinary user has and cannot change; it has no capability that the caller lacks; its memory is
#     "dumpable". In a sandbox only PID 1 is not dumpable, and a fork of PID 1 in its first moments. Code that makes a
#     process of its own so (PR_SET_DUMPABLE, or a program that it may execute and not read) hides what it holds.
#
#     A thread that is ending looks the same: it has no memory any more, and its descriptors belong to root until its
#     parent has waited for it. It runs no more code and soon holds nothing, so it hides nothing. The leader of a
#     process may end long before the other threads: each thread is looked at by itself.
#
#     Where the engine maps users to others, a sandbox has another user than the caller. The caller sees none of its
#     files then, and regards no process as hidden. Descriptors on their way through a unix socket belong to no
#     process: they are never seen.

_GONE = contextlib.suppress(FileNotFoundError, ProcessLookupError)  # closed, or ended, during the check
_BLOCK = 512  # bytes: the unit of st_blocks
_PF_EXITING = 0x4  # among a thread's flags: it runs no more code
_DELETED = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) (\S+) (\d+) .* \(deleted\)")


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

    A process that ends meanwhile holds nothing. `first` itself is trusted, and may be hidden. A fork of it is hidden
    for a moment, so a single check proves nothing.
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
        if _add_mapped_files(sizes, pid, task):
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


def _add_mapped_files(sizes: _Sizes, pid: int, task: str) -> bool:
    """Add the files that a thread's process has mapped, and may have closed; return False if it has no mapping."""
    lines: list[str] = []
    with _GONE, contextlib.suppress(PermissionError), open(f"{task}/maps", errors="replace") as maps:
        lines = maps.read().splitlines()
    found = [line for line in lines if line.endswith(" (deleted)")]  # among hundreds, usually none
    for start, end, offset, numbers, inode in (match.groups() for match in map(_DELETED.fullmatch, found) if match):
        first, last = int(start, 16), int(end, 16)
        try:
            sizes.add(os.stat(f"/proc/{pid}/map_files/{first:x}-{last:x}"))
        except (PermissionError, FileNotFoundError):  # shown only to root, and not if the leader has ended
            if numbers == f"{os.major(sizes.device):02x}:{os.minor(sizes.device):02x}":
                length = int(offset, 16) + last - first
                sizes.mapped[int(inode)] = max(length, sizes.mapped.get(int(inode), 0))
        except ProcessLookupError:
            break
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


REMOVAL_SECONDS = 60.0
"""Seconds that one removal may take; the rest is left for the next one."""
BATCH = 1_000
"""Entries of a folder that are listed before any is removed."""


def remove_tree(
    path: Path | str,
    *,
    dir_fd: int | None = None,
    seconds: float = REMOVAL_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Remove a folder with its contents, a file, or a link without its target; return whether nothing is left.

    A relative path is one below `dir_fd`, if given. Entries that cannot be removed stay, without an error.
    """
    try:
        top = _opened(path, dir_fd)
    except FileNotFoundError:
        return True
    except OSError:
        return _is_done(os.unlink, path, dir_fd)
    try:
        _Removal(top, clock, clock() + seconds).run()
    finally:
        os.close(top)
    return _is_done(os.rmdir, path, dir_fd)


def empty_folder(path: Path | str, *, seconds: float = REMOVAL_SECONDS) -> None:
    """Remove the contents of a folder, but not the folder. Entries that cannot be removed stay, without an error."""
    with contextlib.suppress(FileNotFoundError):
        top = _opened(path, None)
        try:
            _Removal(top, time.monotonic, time.monotonic() + seconds).run()
        finally:
            os.close(top)


class _Removal:
    """Empties one open folder. Subfolders to be emptied lie directly in it, named by numbers."""

    def __init__(self, top: int, clock: Callable[[], float], deadline: float) -> None:
        self._top = top
        self._clock = clock
        self._deadline = deadline
        self._prefix = f".{uuid.uuid4().hex}-"
        self._numbers = itertools.count()
        self._waiting: list[str] = []
        self._removed = 0

    def run(self) -> None:
        """Remove entries as long as any can be removed and there is time."""
        before = -1
        while self._removed > before and not self._is_late():
            before = self._removed
            self._empty_some(self._top)
            while self._waiting and not self._is_late():
                self._empty_waiting(self._waiting.pop())

    def _empty_waiting(self, name: str) -> None:
        """Remove the files of a folder, move its subfolders up, then remove it.

        A folder with more than a batch of entries waits until the others are gone, so that few folders wait at any
        time.
        """
        try:
            folder = _opened(name, self._top)
        except OSError:  # it was swapped for something else
            self._remove(os.unlink, name, self._top)
            return
        try:
            before, place = self._removed, len(self._waiting)
            is_more = self._empty_some(folder)
            has_come_up = len(self._waiting) > place
        finally:
            os.close(folder)
        if is_more and (self._removed > before or has_come_up):
            self._waiting.insert(place, name)
        else:
            self._remove(os.rmdir, name, self._top)

    def _empty_some(self, folder: int) -> bool:
        """Remove or move up a batch of entries; return whether there may be more."""
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            found = list(itertools.islice(entries, BATCH))
            for entry in found:
                if entry.is_dir(follow_symlinks=False) or not self._remove(os.unlink, entry.name, folder):
                    self._rename_up(entry.name, folder)
            return len(found) == BATCH
        return False

    def _rename_up(self, name: str, folder: int) -> None:
        up = f"{self._prefix}{next(self._numbers)}"
        for attempt in (1, 2):
            try:
                os.rename(name, up, src_dir_fd=folder, dst_dir_fd=self._top)
            except PermissionError:  # users other than root may move only folders that they may write to
                if attempt == 1 and _is_done(_unlock, name, folder):
                    continue
                return
            except OSError:  # a mount, or swapped away
                return
            self._waiting.append(up)
            return

    def _remove(self, remove: Callable[..., None], name: str, folder: int) -> bool:
        is_removed = _is_done(remove, name, folder)
        self._removed += is_removed
        return is_removed

    def _is_late(self) -> bool:
        return self._clock() >= self._deadline


def _opened(name: Path | str, dir_fd: int | None) -> int:
    """Return a descriptor of a folder after giving its owner all permissions.

    Raises:
        OSError: it is not a folder, or the caller may not open it.
    """
    try:
        folder = os.open(name, OPEN_DIR, dir_fd=dir_fd)
    except PermissionError:
        _unlock(name, dir_fd=dir_fd)
        folder = os.open(name, OPEN_DIR, dir_fd=dir_fd)
    if os.fstat(folder).st_mode & stat.S_IRWXU != stat.S_IRWXU:
        with contextlib.suppress(OSError):
            os.fchmod(folder, stat.S_IRWXU)
    return folder


def _unlock(name: Path | str, *, dir_fd: int | None) -> None:
    """Give a folder's owner all permissions, on Linux by a descriptor that needs none."""
    if not IS_LINUX:
        os.chmod(name, stat.S_IRWXU, dir_fd=dir_fd, follow_symlinks=False)
        return
    folder = os.open(name, PASS_DIR, dir_fd=dir_fd)
    try:
        os.chmod(f"/proc/self/fd/{folder}", stat.S_IRWXU)
    finally:
        os.close(folder)


def _is_done(act: Callable[..., None], name: Path | str, dir_fd: int | None) -> bool:
    """Run an operation; return whether it succeeded or its object was gone."""
    try:
        act(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
