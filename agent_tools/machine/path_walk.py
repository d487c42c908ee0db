"""Resolves a path part by part, as the kernel does, to see which folders it passes.

Code that can write to a folder on the path can redirect the rest of the path at any moment. So folders are compared
by device and inode, whatever names and links lead to them.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

from agent_tools.machine.folder import PASS_DIR

Identity = tuple[int, int]
"""Of a folder: device and inode."""

NOWHERE: Identity = (0, 0)
"""The identity of a missing folder."""

MAX_LINKS = 40  # links on one path, as in the kernel


def identity(folder: Path | int) -> Identity:
    """Return the identity of a folder, by its path (links are followed) or an open descriptor. Raises OSError."""
    found = os.stat(folder)
    return found.st_dev, found.st_ino


def identity_now(folder: Path) -> Identity:
    """Return the identity of the folder at this path now; NOWHERE if there is none, or it cannot be read."""
    try:
        return identity(folder)
    except OSError:
        return NOWHERE


def parts_below(path: Path, top: Path) -> tuple[str, ...] | None:
    """Return the rest of a path below the folder `top`; None if the path does not lead into it.

    Links are followed up to `top`. Below it names are returned unchanged, `..` included: nothing in it is read, so
    nothing in it can redirect the path.

    Raises:
        OSError: the path cannot be resolved: links form a circle, a part before a `..` is missing, or it enters `top`
        and leaves it again.
    """
    try:
        wanted = identity(top)
    except OSError:
        return None
    with closing(_steps(path)) as steps:
        for folder, left in steps:
            if identity(folder) == wanted and (inside := _taken(left)) is not None:
                return inside
    return None


def folders_passed(path: Path) -> tuple[Identity, ...]:
    """Return the folders on the path to a folder, with itself, or NOWHERE, as the last; links are followed.

    Raises:
        OSError: links form a circle, or a folder may not be passed.
    """
    passed, is_there = [], False
    with closing(_steps(path)) as steps:
        for folder, left in steps:
            passed.append(identity(folder))
            is_there = not left
    return tuple(passed) if is_there else (*passed, NOWHERE)


def _steps(path: Path) -> Generator[tuple[int, deque[str]], None, None]:
    """Yield a descriptor of every folder on the path, open until the next one, and the remaining parts."""
    left, links = _parts(str(path.absolute())), 0
    here = os.open("/", PASS_DIR)
    try:
        yield here, left
        while left:
            part = left.popleft()
            try:
                there = os.open(part, PASS_DIR, dir_fd=here)
            except (FileNotFoundError, NotADirectoryError):
                target = _link_target(part, here, left)
                if target is None:
                    return
                if (links := links + 1) > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
                left.extendleft(reversed(_parts(target)))
                there = os.open("/" if target.startswith("/") else ".", PASS_DIR, dir_fd=here)
            os.close(here)
            here = there
            yield here, left
    finally:
        os.close(here)


def _link_target(part: str, folder: int, left: deque[str]) -> str | None:
    """Return the target of a link; None at the end of the path: a file, or a missing entry."""
    try:
        return os.readlink(part, dir_fd=folder)
    except OSError:
        if ".." in left:
            raise
        return None


def _parts(path: str) -> deque[str]:
    return deque(part for part in path.split("/") if part not in ("", "."))


def _taken(left: deque[str]) -> tuple[str, ...] | None:
    """Remove the leading names that stay in a folder; return None if the first one leads out of it."""
    if left and left[0] == "..":
        return None
    inside: list[str] = []
    while left:
        part = left.popleft()
        if part != "..":
            inside.append(part)
        elif inside:
            inside.pop()
        else:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    return tuple(inside)
