"""Remove a folder with untrusted contents, even while hostile code still changes it.

Folders may be nested to any depth, so nothing recurses and no path is built: each folder is first moved up, directly
into the folder to remove, and emptied there. That takes three descriptors, little memory, and one rename for each
folder, at any depth. Links are never followed. Mount points cannot be renamed, so other file systems are not entered.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from agent_tools.machine.folder import open_unlocked, unlock

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
                if attempt == 1 and _is_done(unlock, name, folder):
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
    folder = open_unlocked(name, dir_fd)
    if os.fstat(folder).st_mode & stat.S_IRWXU != stat.S_IRWXU:
        with contextlib.suppress(OSError):
            os.fchmod(folder, stat.S_IRWXU)
    return folder


def _is_done(act: Callable[..., None], name: Path | str, dir_fd: int | None) -> bool:
    """Run an operation; return whether it succeeded or its object was gone."""
    try:
        act(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
