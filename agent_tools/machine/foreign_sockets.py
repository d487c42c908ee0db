"""Sockets in a folder that untrusted code is to get: through one that a program serves, it could leave its sandbox."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Container

from agent_tools.machine.folder import sockets
from agent_tools.machine.guest_ids import is_account
from agent_tools.machine.machine import IS_LINUX


def foreign_socket(fd: int, guests: Container[int]) -> str:
    """Return a socket below an open folder that code, with a uid of `guests`, did not certainly leave; '' for none."""
    for name, facts, parent in sockets(fd):
        if not (facts.st_uid in guests and _is_left(parent, os.path.basename(name), facts.st_uid)):
            return name
    return ""


def _is_left(fd: int, name: str, owner: int) -> bool:
    """Return whether code left a socket with a guest's uid; if other programs may have this uid, a dead one was."""
    is_shared = owner == os.getuid() or is_account(owner)
    return not (is_shared and _is_listened_on(fd, name))


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
