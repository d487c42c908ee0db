"""Files that a command reads and writes on the host, maybe in a folder where code could plant links."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from agent_tools.machine.folder import open_parent, reading, replacing
from agent_tools.machine.path_walk import parts_below


@contextmanager
def written(path: Path, work_dir: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Open a new file, which replaces the one at the path once it is written; in `work_dir` no link is followed.

    The new file has `mode`, or the mode and owner of the old one.

    Raises:
        OSError: it cannot be written; a part of it is removed.
    """
    inside, target = parts_below(path, work_dir), path.resolve()
    if not inside and path.exists() and not path.is_file():
        with open(path, "wb") as file:  # such as /dev/stdout; a folder is refused
            yield file
        return
    folder, name = (work_dir.resolve(), "/".join(inside)) if inside else (target.parent, target.name)
    old = _facts(folder, name)
    owner = (old.st_uid, old.st_gid) if old else (os.getuid(), os.getgid())
    with replacing(folder, name, owner, mode) as file:
        if old:
            os.fchmod(file.fileno(), old.st_mode & 0o777)
        yield file


def _facts(folder: Path, name: str) -> os.stat_result | None:
    """Return the facts of a regular file; None if there is none. Raises IsADirectoryError."""
    with suppress(FileNotFoundError), open_parent(folder, name) as (fd, last):
        facts = os.lstat(last, dir_fd=fd)
        if stat.S_ISDIR(facts.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        return facts if stat.S_ISREG(facts.st_mode) else None
    return None


def read(path: Path, work_dir: Path) -> AbstractContextManager[BinaryIO]:
    """Open a file to read; in `work_dir` no link is followed.

    Raises:
        OSError: it cannot be read; FileNotFoundError only if nothing is there.
    """
    inside = parts_below(path, work_dir)
    return reading(work_dir.resolve(), "/".join(inside)) if inside else open(path, "rb")
