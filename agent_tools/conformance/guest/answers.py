"""Answers of checks, and helpers that several checks use."""

from __future__ import annotations

import errno
import os
import platform
import struct

REFUSED = (errno.EPERM, errno.EACCES, errno.EROFS)


def held(found: str) -> list[str]:
    """Answer that the attempt failed."""
    return ["held", found]


def opened(found: str) -> list[str]:
    """Answer that the attempt succeeded."""
    return ["open", found]


def listed(names: list[str], none: str) -> list[str]:
    """Answer open if anything was found."""
    return opened(", ".join(names)) if names else held(none)


def refusal(exc: OSError) -> list[str]:
    """Answer by an error: refused and absent are held, any other is unknown."""
    name = errno.errorcode.get(exc.errno or 0, str(exc))
    if exc.errno in REFUSED:
        return held("refused (" + name + ")")
    return held("not there") if exc.errno in (errno.ENOENT, errno.ENOTDIR) else ["unknown", name]


def opens(path: str, flags: int) -> bool:
    """Return True if a file can be opened; nothing is read or written."""
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def read(path: str) -> str:
    """Return the first MiB of a file, '' if it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""


def call_numbers() -> int | None:
    """Return this machine's column in a table of system call numbers: x86_64, aarch64; None for any other."""
    return {"x86_64": 0, "aarch64": 1}.get(platform.machine()) if struct.calcsize("P") == 8 else None
