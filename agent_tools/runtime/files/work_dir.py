"""The folders that may be handed to code that is not trusted."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import stat
from pathlib import Path

from agent_tools import settings
from agent_tools.engines.engine import Guest
from agent_tools.errors import InvalidParams
from agent_tools.machine.folder import OPEN_DIR, identity
from agent_tools.machine.guest_ids import GUEST_UIDS, hand_over
from agent_tools.machine.machine import IS_LINUX
from agent_tools.runtime.files.claims import refuse_held
from agent_tools.runtime.files.made import note_made

_SYSTEM_TREES = ("/proc", "/sys", "/dev", "/run", "/var/run", "/etc")  # with all that is in them
_SYSTEM_DIRS = ("/", "/boot", "/bin", "/sbin", "/lib", "/usr", "/var", "/home", "/opt", "/srv", *_SYSTEM_TREES)
MAX_ENTRIES_LOOKED_AT = 10_000


def prepare_work_dir(path: Path, guest: Guest) -> Path:
    """Make and check a work_dir, and give it to the guest; return its absolute path.

    Raises:
        InvalidParams: the folder is unsafe to hand to code that is not trusted.
    """
    path = Path("/" + os.path.abspath(os.path.expanduser(path)).lstrip("/"))  # POSIX lets abspath keep "//"
    try:
        _refuse_unsafe(path)
        refuse_held(path)
        is_new = _make(path)
        fd = os.open(path, OPEN_DIR)
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise InvalidParams(f"work_dir {str(path)!r} cannot be used: {reason}. Give a folder of your own.") from exc
    try:
        _refuse_sockets(fd, path, guest)
        if os.getuid() == 0:
            hand_over(fd, guest.outside)
        if is_new:
            note_made(path, identity(fd))
    finally:
        os.close(fd)
    return path


def _make(path: Path) -> bool:
    """Make a folder if there is none of this name; return whether it was made."""
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        return False
    return True


def _refuse_unsafe(path: Path) -> None:
    reason = ""
    ways = (path, Path(os.path.realpath(path)))
    homes = (Path.home(), Path(os.path.realpath(Path.home())))
    if any(str(way) in _SYSTEM_DIRS or any(way.is_relative_to(top) for top in _SYSTEM_TREES) for way in ways):
        reason = "is part of the system"
    elif any(way == home or way in home.parents for way in ways for home in homes):
        reason = "is your home folder or holds it"
    elif path.is_symlink():
        reason = "is a symbolic link"
    elif path.is_dir() and path.stat().st_mode & stat.S_ISVTX:
        reason = "belongs to all users of this machine"
    elif any(way == kept or way in kept.parents or kept in way.parents for way in ways for kept in _kept_folders()):
        reason = "is, holds or lies in the folder by which sandboxes are reached"
    elif path.exists() and not path.is_dir():
        raise InvalidParams(f"work_dir {path} is not a folder. Give another one.")
    if reason:
        raise InvalidParams(f"work_dir {path} {reason}; code that is not trusted may not have it. Give another folder.")


def _kept_folders() -> tuple[Path, Path]:
    """Return the folder of run directories, by name and without links."""
    kept = settings.runtime_dir()
    return kept, Path(os.path.realpath(kept))


def _refuse_sockets(fd: int, path: Path, guest: Guest) -> None:
    former = os.fstat(fd).st_uid
    guests = {guest.outside[0], *([former] if former in GUEST_UIDS else [])}
    with os.scandir(fd) as entries:
        for entry in itertools.islice(entries, MAX_ENTRIES_LOOKED_AT):
            with contextlib.suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISSOCK(found.st_mode) and not _is_left_by(guests, fd, entry.name, found.st_uid):
                    raise InvalidParams(
                        f"work_dir {path} holds a socket ({entry.name!r}), through which code could leave the "
                        "sandbox. Give another folder, or remove the socket."
                    )


def _is_left_by(guests: set[int], fd: int, name: str, owner: int) -> bool:
    """Return whether a socket can only be one that code left there. Where the guest has our own uid, a dead one can."""
    return owner in guests and (owner != os.getuid() or not _is_listened_on(fd, name))


def _is_listened_on(fd: int, name: str) -> bool:
    """Return whether a process has this socket open; True where that cannot be told."""
    if not IS_LINUX:
        return True
    try:
        with contextlib.ExitStack() as stack:
            found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            stack.callback(os.close, found)
            asking = stack.enter_context(socket.socket(socket.AF_UNIX))
            asking.setblocking(False)
            asking.connect(f"/proc/self/fd/{found}")
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:
        return True
    return True
