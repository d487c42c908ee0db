"""A temporary work_dir for a sandbox without a configured one, named after the process that owns it:
`<temporary folder>/agent-tools-<pid>-<start time>-<host>-<random>`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from pathlib import Path

from agent_tools.machine.guest_ids import GUEST_UIDS
from agent_tools.machine.owner import Owner, owner_is_gone
from agent_tools.machine.path_walk import identity
from agent_tools.machine.removal import remove_tree
from agent_tools.runtime.files.new_work_dirs import note_made

_PREFIX = "agent-tools-"
_NAME = re.compile(rf"{_PREFIX}(\d+-\d+)-([0-9a-f]{{8}})-\w+")


def make_temp_work_dir() -> Path:
    """Make a fresh folder that only this user may enter.

    Raises:
        OSError: the disk is full.
    """
    owner = Owner.current()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{owner.token}-{_mark(owner)}-"))
    note_made(folder, identity(folder))
    return folder


def remove_stale_temp_work_dirs() -> list[Path]:
    """Delete the folders of processes that are gone, normally killed ones; return their paths.

    Others may write to their parent: only folders of this user, or of this user's guests, and of this host are removed.
    """
    base, mark, removed = tempfile.gettempdir(), _mark(Owner.current()), []
    with contextlib.suppress(OSError), os.scandir(base) as entries:
        for entry in list(entries):
            name = _NAME.fullmatch(entry.name)
            if name and name[2] == mark and owner_is_gone(name[1]) and _is_ours(entry):
                remove_tree(entry.path)
                removed.append(Path(entry.path))
    return removed


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """Return whether a folder belongs to this user, or root gave it to a guest."""
    with contextlib.suppress(OSError):
        uid = entry.stat(follow_symlinks=False).st_uid
        is_given = os.getuid() == 0 and uid in GUEST_UIDS
        return entry.is_dir(follow_symlinks=False) and (uid == os.getuid() or is_given)
    return False


def _mark(owner: Owner) -> str:
    """A short id of the host: hosts may share a temporary folder but cannot see each other's processes."""
    return hashlib.sha256(owner.host.encode()).hexdigest()[:8]
