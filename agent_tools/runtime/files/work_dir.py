"""Check which folders may be given to untrusted code as work_dir."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from agent_tools.engines.guest import Guest
from agent_tools.errors import InvalidParams
from agent_tools.machine.folder import OPEN_DIR, sockets
from agent_tools.machine.guest_ids import GUEST_UIDS, hand_over
from agent_tools.machine.machine import IS_LINUX
from agent_tools.machine.path_walk import identity
from agent_tools.machine.unsafe_folders import objection
from agent_tools.runtime.files.claims import refuse_claimed
from agent_tools.runtime.files.new_work_dirs import note_made


def prepare_work_dir(path: Path, guest: Guest) -> Path:
    """Make and check a work_dir, and give it to the guest; return its absolute path.

    Raises:
        InvalidParams: the folder is not safe for untrusted code.
    """
    path = Path("/" + os.path.abspath(os.path.expanduser(path)).lstrip("/"))  # POSIX lets abspath keep "//"
    try:
        _refuse_unsafe(path)
        refuse_claimed(path)
        is_new = _make(path)
        fd = os.open(path, OPEN_DIR)
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise InvalidParams(f"work_dir {str(path)!r} cannot be used: {reason}. Give a folder of your own.") from exc
    try:
        _refuse_sockets(fd, path, guest)
        if os.getuid() == 0:
            hand_over(fd, guest.host_ids)
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
    if reason := objection(path):
        raise InvalidParams(f"work_dir {path} {reason}; untrusted code may not have it. Give another folder.")
    if path.exists() and not path.is_dir():
        raise InvalidParams(f"work_dir {path} is not a folder. Give another one.")


def _refuse_sockets(fd: int, path: Path, guest: Guest) -> None:
    former = os.fstat(fd).st_uid
    guests = {guest.host_ids[0], *([former] if former in GUEST_UIDS else [])}
    for name, facts, parent in sockets(fd):
        if not _is_left_by(guests, parent, os.path.basename(name), facts.st_uid):
            raise InvalidParams(
                f"work_dir {path} holds a socket ({name!r}), through which code could leave the sandbox. Give another "
                "folder, or remove the socket."
            )


def _is_left_by(guests: set[int], fd: int, name: str, owner: int) -> bool:
    """Return whether a socket was certainly left by code; if the guest has this user's uid, a dead one was."""
    return owner in guests and (owner != os.getuid() or not _is_listened_on(fd, name))


def _is_listened_on(fd: int, name: str) -> bool:
    """Return whether a process has this socket open; True if this is not known."""
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
