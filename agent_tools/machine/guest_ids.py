"""The uids of guests where the caller is root: each work_dir has one of its own, and with it each sandbox.

The kernel counts much for each uid, over all containers: inotify instances, pending signals, pages of pipes. A folder's
owner, or the access list of one that has files of root, is the record: it keeps the uid it has, so that a container
that comes back sees its own files. Only where another folder of this process has that uid, too, is it given a fresh
one. Other processes are kept apart by chance alone.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import secrets
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from agent_tools.machine.access import grant, granted
from agent_tools.machine.folder import MAX_LEVELS, OPEN_DIR

GUEST_UIDS = range(10_001, 60_000)  # within what user namespaces map, and below what distributions reserve
MAX_GIVEN_ENTRIES = 200_000  # of a folder that goes over to another uid
_TRIES = 1_000


def is_account(uid: int) -> bool:
    """Return whether an account of this machine has the uid."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _any_uid() -> int:
    return GUEST_UIDS[secrets.randbelow(len(GUEST_UIDS))]


def _owner(folder: Path) -> int:
    """Return the owner of a folder, or the guest that a folder's access list names; -1 without either."""
    with contextlib.suppress(OSError):
        owner = os.stat(folder, follow_symlinks=False).st_uid
        return owner if owner in GUEST_UIDS else next((uid for uid in granted(folder) if uid in GUEST_UIDS), owner)
    return -1


class GuestIds:
    """The uids of the folders that this process was asked about. Thread-safe."""

    def __init__(
        self,
        pick: Callable[[], int] = _any_uid,
        is_taken: Callable[[int], bool] = is_account,
        owner_of: Callable[[Path], int] = _owner,
    ) -> None:
        self._pick = pick
        self._is_taken = is_taken
        self._owner_of = owner_of
        self._lock = threading.Lock()
        self._folders: dict[int, Path] = {}

    def of(self, folder: Path) -> int:
        """The uid of a folder, which need not be there yet."""
        folder = Path(os.path.abspath(os.path.expanduser(folder)))
        with self._lock:
            uid = next((uid for uid in self._candidates(folder) if self._is_free(uid, folder)), GUEST_UIDS[0])
            self._folders[uid] = folder
        return uid

    def _candidates(self, folder: Path) -> Iterator[int]:
        """Its owner, what was chosen for it before, any other; so many that the first uid is shared if none is free."""
        yield self._owner_of(folder)
        yield from [uid for uid, known in self._folders.items() if known == folder]
        yield from (self._pick() for _ in range(_TRIES))

    def _is_free(self, uid: int, folder: Path) -> bool:
        if uid not in GUEST_UIDS:
            return False
        known = self._folders.get(uid)
        if known is None:
            return not self._is_taken(uid)
        return known == folder or self._owner_of(known) != uid or _is_same(known, folder)


def owner_of(folder: Path, usual: tuple[int, int]) -> tuple[int, int]:
    """Return the guest who owns a work_dir, which is another than before once a sandbox made ahead has it.

    `usual` where no guest owns it, as with a caller who is not root. Raises OSError.
    """
    found = os.stat(folder)
    return (found.st_uid, found.st_gid) if found.st_uid in GUEST_UIDS else usual


def hand_over(fd: int, owner: tuple[int, int]) -> None:
    """Give an open folder to a guest, with what a former guest has in it. No link is followed.

    A folder that holds something, and was no guest's, stays its owner's: the guest gets access to what everybody may
    read in it, where the file system has access lists. At most `MAX_GIVEN_ENTRIES` are looked at, and `MAX_LEVELS` of
    folders.
    """
    former = os.fstat(fd).st_uid
    if former == owner[0]:
        return
    if former not in GUEST_UIDS or is_account(former):
        if owner[0] != 0 and os.listdir(fd) and grant(fd, owner[0], GUEST_UIDS):  # root needs no list
            return
    else:
        for inner, name in itertools.islice(_entries_of(fd, former, MAX_LEVELS), MAX_GIVEN_ENTRIES):
            with contextlib.suppress(OSError):
                os.chown(name, *owner, dir_fd=inner, follow_symlinks=False)
    os.fchown(fd, *owner)  # last: should this be cut short, it is done again


def _entries_of(fd: int, uid: int, levels: int) -> Iterator[tuple[int, str]]:
    """All entries below an open folder that are owned by a uid, each with a descriptor of the folder it is in."""
    with os.scandir(fd) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                facts = entry.stat(follow_symlinks=False)
                if facts.st_uid == uid:
                    yield fd, entry.name
                if stat.S_ISDIR(facts.st_mode) and levels:
                    inner = os.open(entry.name, OPEN_DIR, dir_fd=fd)
                    try:
                        yield from _entries_of(inner, uid, levels - 1)
                    finally:
                        os.close(inner)


def _is_same(folder: Path, other: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samefile(folder, other)
    return False
