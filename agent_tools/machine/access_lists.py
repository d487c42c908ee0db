"""Access for a guest to the files that root has in a folder, by POSIX access control lists; no owner changes.

A guest gets the owner's permissions, but only for files that everybody may read: private files of root stay private.
Files with several links, or that run as their owner, are left out, since they may be files of the system as well.

The value of the attribute (linux/posix_acl_xattr.h): u32 version 2; for each entry u16 tag, u16 permissions, u32 id.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from collections.abc import Container, Iterator
from functools import reduce
from operator import or_

from agent_tools.machine.folder import MAX_LEVELS, OPEN_DIR, OPEN_FILE
from agent_tools.machine.machine import IS_LINUX

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
