"""The way to a folder, walked part by part as the kernel would: which folders it leads through, and where into one.

Whoever writes to a folder on the way can bend what comes after it, at any moment. So such a folder is recognised by its
device and inode, whatever names and links lead to it.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

from agent_tools.runtime.files.folder import PASS_DIR

Identity = tuple[int, int]
"""Of a folder: device and inode."""

NOWHERE: Identity = (0, 0)
"""Of a folder that is not there."""

MAX_LINKS = 40  # on one way, as in the kernel


def identity(folder: Path | int) -> Identity:
    """Return the identity of a folder, by its path (links are followed) or an open descriptor. Raises OSError."""
    found = os.stat(folder)
    return found.st_dev, found.st_ino


def identity_now(folder: Path) -> Identity:
    """Return the identity of what has this path now; NOWHERE if nothing has, or it cannot be told."""
    try:
        return identity(folder)
    except OSError:
        return NOWHERE


def parts_below(path: Path, top: Path) -> tuple[str, ...] | None:
    """The names by which a path goes on from the folder `top`; None if it does not lead into it.

    Links are followed up to `top`. Below it names are taken as they are written, `..` included: nothing in there is
    asked, so nothing in there can bend the way.

    Raises:
        OSError: it cannot be told where the path leads: links lead in a circle, a part before a `..` is missing, or it
            goes into `top` by a name and out again.
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
    """The folders that the way to a folder leads through, itself the last, or NOWHERE; links are followed.

    Raises:
        OSError: links lead in a circle, or a folder may not be passed.
    """
    passed, is_there = [], False
    with closing(_steps(path)) as steps:
        for folder, left in steps:
            passed.append(identity(folder))
            is_there = not left
    return tuple(passed) if is_there else (*passed, NOWHERE)


def _steps(path: Path) -> Generator[tuple[int, deque[str]], None, None]:
    """A descriptor of every folder on the way, open until the next one, and the parts that are left after it."""
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
    """Return where a link leads; None where the way ends, at a file or at what is not there."""
    try:
        return os.readlink(part, dir_fd=folder)
    except OSError:
        if ".." in left:
            raise
        return None


def _parts(path: str) -> deque[str]:
    return deque(part for part in path.split("/") if part not in ("", "."))


def _taken(left: deque[str]) -> tuple[str, ...] | None:
    """Take off the names that stay in a folder; None if the first one leads out of it."""
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
