"""The uids of guests if the caller is root: each work_dir, and so each sandbox, has its own uid.

The kernel has limits for each uid over all containers: inotify instances, pending signals, pages of pipes. The uid is
stored as the folder's owner, or in the access list of a folder with files of root: the folder keeps its uid, so that a
later container can read its own files. It gets a new uid only if another folder of this process has the same one. Uids
of other processes differ only by chance.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import pwd
import secrets
import stat
import struct
import threading
from collections.abc import Callable, Container, Iterator
from functools import reduce
from operator import or_
from pathlib import Path

from agent_tools.machine.folder import MAX_LEVELS, OPEN_DIR, OPEN_FILE, walk
from agent_tools.machine.machine import IS_LINUX

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

    def of(self, folder: Path) -> int:
        """Return the uid for a folder, which need not exist yet."""
        folder = Path(os.path.abspath(os.path.expanduser(folder)))
        with self._lock:
            uid = next((uid for uid in self._candidates(folder) if self._is_free(uid, folder)), GUEST_UIDS[0])
            self._folders[uid] = folder
        return uid

    def _candidates(self, folder: Path) -> Iterator[int]:
        """Yield the folder's owner, its earlier uid, then others; the first is shared if none is free."""
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


# Access for a guest to the files that root has in a folder, by POSIX access control lists; no owner changes.
#
# A guest gets the owner's permissions, but only for files that everybody may read: private files of root stay private.
# Files with several links, or that run as their owner, are left out, since they may be files of the system as well.
#
# The value of the attribute (linux/posix_acl_xattr.h): u32 version 2; for each entry u16 tag, u16 permissions, u32 id.


_ATTRIBUTE = "system.posix_acl_access"
_VERSION = struct.pack("<I", 2)
_ENTRY = struct.Struct("<HHI")
_OWNER, _USER, _OWNING_GROUP, _GROUP, _MASK, _OTHERS = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
_NOBODY = 0xFFFFFFFF  # the id of entries without a user or group
_Entry = tuple[int, int, int]
MAX_ENTRIES = 200_000  # files and folders that are checked


def grant(folder: int, uid: int, former: Container[int]) -> bool:
    """Let a user work on the contents of an open folder; return False if its file system has no access lists.

    The entries of `former` guests are removed.
    """
    if not IS_LINUX:
        return False
    top = os.fstat(folder)
    try:
        _grant(folder, top, uid, former)
    except OSError as exc:
        if exc.errno not in (errno.ENOTSUP, errno.EPERM, errno.ENOSYS):
            raise
        return False
    for number, (fd, facts) in enumerate(_readable(folder, top.st_dev, MAX_LEVELS)):
        if number >= MAX_ENTRIES:
            break
        with contextlib.suppress(OSError):
            _grant(fd, facts, uid, former)
    return True


def granted(folder: str | os.PathLike[str]) -> Iterator[int]:
    """Yield the uids that the list of a folder names."""
    with contextlib.suppress(OSError, AttributeError):  # no list, or not on this system
        value = os.getxattr(folder, _ATTRIBUTE, follow_symlinks=False)
        yield from (uid for tag, _, uid in _entries(value) if tag == _USER)


def _readable(folder: int, device: int, levels: int) -> Iterator[tuple[int, os.stat_result]]:
    """Yield, opened, the entries below an open folder that everybody may read; other file systems are not entered."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                mode = entry.stat(follow_symlinks=False).st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    continue
                fd = os.open(entry.name, OPEN_DIR if stat.S_ISDIR(mode) else OPEN_FILE, dir_fd=folder)
                try:
                    facts = os.fstat(fd)
                    if facts.st_dev == device and _is_plain(facts):
                        yield fd, facts
                        if stat.S_ISDIR(facts.st_mode) and levels:
                            yield from _readable(fd, device, levels - 1)
                finally:
                    os.close(fd)


def _is_plain(facts: os.stat_result) -> bool:
    if not facts.st_mode & stat.S_IROTH:
        return False
    if stat.S_ISDIR(facts.st_mode):
        return True
    return stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1 and not facts.st_mode & (stat.S_ISUID | stat.S_ISGID)


def _grant(fd: int, facts: os.stat_result, uid: int, former: Container[int]) -> None:
    """Give a user the owner's permissions in the access list of a file. Nobody else gets more than before."""
    if facts.st_uid == uid:
        return
    try:
        before = list(_entries(os.getxattr(fd, _ATTRIBUTE)))
    except OSError as exc:
        if exc.errno != errno.ENODATA:
            raise
        mode = facts.st_mode
        classes = ((_OWNER, mode >> 6), (_OWNING_GROUP, mode >> 3), (_OTHERS, mode))
        before = [(tag, allowed & 7, _NOBODY) for tag, allowed in classes]
    mask = next((allowed for tag, allowed, _ in before if tag == _MASK), 7)
    after = [(_USER, facts.st_mode >> 6 & 7, uid)]
    for tag, allowed, id_ in before:
        if tag in (_OWNER, _OTHERS):
            after.append((tag, allowed, id_))
        elif tag != _MASK and not (tag == _USER and (id_ == uid or id_ in former)):
            after.append((tag, allowed & mask, id_))
    named = [allowed for tag, allowed, _ in after if tag in (_USER, _OWNING_GROUP, _GROUP)]
    after.append((_MASK, reduce(or_, named), _NOBODY))
    if sorted(after) != sorted(before):
        os.setxattr(fd, _ATTRIBUTE, _VERSION + b"".join(_ENTRY.pack(*entry) for entry in sorted(after)))


def _entries(value: bytes) -> Iterator[_Entry]:
    if value[:4] == _VERSION and len(value) % _ENTRY.size == 4:
        yield from _ENTRY.iter_unpack(value[4:])
