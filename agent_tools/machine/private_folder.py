"""The private folder of this user for files that belong to sandboxes."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from agent_tools.errors import EngineError
from agent_tools.machine.folder import open_folder
from agent_tools.machine.owner import owner_is_gone
from agent_tools.machine.removal import remove_tree
from agent_tools.settings import runtime_dir


def private_base(folder: Path | None = None) -> Path:
    """Return the folder of all run directories, or another private folder of this user, made if missing.

    Raises:
        EngineError: it cannot be made, or is not the caller's own.
    """
    base = folder or runtime_dir()
    advice = "remove it or set AGENT_TOOLS_RUN_DIR to another place"
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.stat(base, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise EngineError(f"{base} is not a folder of yours; {advice}.")
        if stat.S_IMODE(found.st_mode) & 0o077:
            base.chmod(0o700)
    except OSError as exc:
        raise EngineError(f"{base} cannot be used ({exc.strerror}); {advice}.") from exc
    return base


def remove_stale_run_dirs() -> list[Path]:
    """Delete the run directories and the claims of processes that are gone; return their paths.

    Their base lies where others may write, too: a folder that others made or may change is ignored.
    """
    base, removed = runtime_dir(), []
    with contextlib.suppress(OSError), opened_own(base) as folder, os.scandir(folder) as entries:
        for entry in list(entries):
            is_ours = not entry.is_symlink() and entry.stat(follow_symlinks=False).st_uid == os.getuid()
            if is_ours and owner_is_gone(entry.name):
                remove_tree(entry.name, dir_fd=folder)
                removed.append(base / entry.name)
    return removed


@contextlib.contextmanager
def opened_own(path: Path) -> Iterator[int]:
    """Return a descriptor of a folder that belongs to the caller and that no other user may write to.

    Raises:
        OSError: it is not such a folder.
    """
    with open_folder(path) as folder:
        found = os.fstat(folder)
        if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        yield folder
