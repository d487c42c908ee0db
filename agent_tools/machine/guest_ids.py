"""The uids of guests if the caller is root: each work_dir, and so each sandbox, has its own uid.

The kernel has limits for each uid over all containers: inotify instances, pending signals, pages of pipes. The uid is
stored as the folder's owner, or in the access list of a folder with files of root: the folder keeps its uid, so that a
later container can read its own files. It gets a new uid only if another folder of this process has the same one. Uids
of other processes differ only by chance.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from agent_tools.machine.access_lists import grant, granted
from agent_tools.machine.folder import MAX_LEVELS, walk

# within the range that user namespaces map, and below the ranges that distributions reserve
GUEST_UIDS = range(10_001, 60_000)
MAX_GIVEN_ENTRIES = 200_000  # entries of a folder that is given to another uid
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
    """Return the owner of a folder, or the guest in its access list; -1 without either."""
    with contextlib.suppress(OSError):
        owner = os.stat(folder, follow_symlinks=False).st_uid
        return owner if owner in GUEST_UIDS else next((uid for uid in granted(folder) if uid in GUEST_UIDS), owner)
    return -1


class GuestIds:
    """The uids that this process has chosen for folders. Thread-safe."""

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
        self._uids: dict[Path, int] = {}  # the newest of each folder in `_folders`

    def of(self, folder: Path) -> int:
        """Return the uid for a folder, which need not exist yet."""
        folder = Path(os.path.abspath(os.path.expanduser(folder)))
        with self._lock:
            uid = next((uid for uid in self._candidates(folder) if self._is_free(uid, folder)), GUEST_UIDS[0])
            former = self._folders.get(uid)
            if former and self._uids.get(former) == uid:
                del self._uids[former]
            self._folders[uid], self._uids[folder] = folder, uid
        return uid

    def _candidates(self, folder: Path) -> Iterator[int]:
        """Yield the folder's owner, its earlier uid, then others; the first is shared if none is free."""
        yield self._owner_of(folder)
        yield self._uids.get(folder, -1)
        yield from (self._pick() for _ in range(_TRIES))

    def _is_free(self, uid: int, folder: Path) -> bool:
        if uid not in GUEST_UIDS:
            return False
        known = self._folders.get(uid)
        if known is None:
            return not self._is_taken(uid)
        return known == folder or self._owner_of(known) != uid or _is_same(known, folder)


def owner_of(folder: Path, usual: tuple[int, int]) -> tuple[int, int]:
    """Return the guest that owns a work_dir, which changes when a pre-warmed sandbox gets the folder.

    Return `usual` if no guest owns it, as for callers that are not root. Raises OSError.
    """
    found = os.stat(folder)
    return (found.st_uid, found.st_gid) if found.st_uid in GUEST_UIDS else usual


def hand_over(fd: int, owner: tuple[int, int]) -> None:
    """Give an open folder to a guest, with the entries of a former guest. No link is followed.

    A folder with contents that no guest owned keeps its owner: the guest gets access to the files that everybody may
    read, if the file system has access lists. At most `MAX_GIVEN_ENTRIES` are looked at, and `MAX_LEVELS` of
    folders.
    """
    former = os.fstat(fd).st_uid
    if former == owner[0]:
        return
    if former not in GUEST_UIDS or is_account(former):
        if owner[0] != 0 and os.listdir(fd) and grant(fd, owner[0], GUEST_UIDS):  # root needs no list
            return
    else:
        owned = (entry for entry in walk(fd, "", MAX_LEVELS) if entry[1].st_uid == former)
        for name, _, inner in itertools.islice(owned, MAX_GIVEN_ENTRIES):
            with contextlib.suppress(OSError):
                os.chown(name.rpartition("/")[2], *owner, dir_fd=inner, follow_symlinks=False)
    os.fchown(fd, *owner)  # last: if this is interrupted, it is done again


def _is_same(folder: Path, other: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samefile(folder, other)
    return False
