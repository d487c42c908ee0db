"""Check which folders may be given to untrusted code as work_dir."""

from __future__ import annotations

import os
from pathlib import Path

from agent_tools.engines.guest import Guest
from agent_tools.errors import InvalidParams
from agent_tools.machine.folder import OPEN_DIR
from agent_tools.machine.foreign_sockets import foreign_socket
from agent_tools.machine.guest_ids import GUEST_UIDS, hand_over
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
    if name := foreign_socket(fd, guests):
        raise InvalidParams(
            f"work_dir {path} holds a socket ({name!r}), through which code could leave the sandbox. Give another "
            "folder, or remove the socket."
        )
