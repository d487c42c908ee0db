"""Folders of this machine that untrusted code may not have."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from agent_tools import settings

_SYSTEM_TREES = ("/proc", "/sys", "/dev", "/run", "/var/run", "/etc")  # with all their contents
_SYSTEM_DIRS = ("/", "/boot", "/bin", "/sbin", "/lib", "/usr", "/var", "/home", "/opt", "/srv", *_SYSTEM_TREES)


def objection(path: Path, *, may_be_shared: bool = False) -> str:
    """Return why untrusted code may not have the folder at an absolute path, as a clause about it; '' if it may.

    A folder of all users (sticky, as /tmp is) `may_be_shared`.
    """
    ways = (path, Path(os.path.realpath(path)))
    homes = (Path.home(), Path(os.path.realpath(Path.home())))
    if any(str(way) in _SYSTEM_DIRS or any(way.is_relative_to(top) for top in _SYSTEM_TREES) for way in ways):
        return "is part of the system"
    if any(way == home or way in home.parents for way in ways for home in homes):
        return "is your home folder or holds it"
    if path.is_symlink():
        return "is a symbolic link"
    if not may_be_shared and path.is_dir() and path.stat().st_mode & stat.S_ISVTX:
        return "belongs to all users of this machine"
    if any(overlap(way, kept) for way in ways for kept in _kept_folders()):
        return "is, holds or lies in the folder with the sockets of sandboxes"
    return ""


def overlap(path: Path, other: Path) -> bool:
    """Return whether two absolute paths are the same, or one lies in the other."""
    return path.is_relative_to(other) or other.is_relative_to(path)


def _kept_folders() -> tuple[Path, Path]:
    """Return the folder of run directories, by name and without links."""
    kept = settings.runtime_dir()
    return kept, Path(os.path.realpath(kept))
