"""The work_dir of a sandbox that nobody gave one: a temporary folder, named for the process that it ends with.

<temporary folder>/agent-tools-<pid>-<start time>-<host>-<random>
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from pathlib import Path

from agent_tools.runtime.files.guest_ids import GUEST_UIDS
from agent_tools.runtime.files.made import note_made
from agent_tools.runtime.files.removal import remove_tree
from agent_tools.runtime.files.way import identity
from agent_tools.runtime.host.owner import Owner, owner_is_gone

_PREFIX = "agent-tools-"
_NAME = re.compile(rf"{_PREFIX}(\d+-\d+)-([0-9a-f]{{8}})-\w+")


def make_own_folder() -> Path:
    """Make a fresh folder that only this user may enter.

    Raises:
        OSError: there is no room for it.
    """
    owner = Owner.current()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{owner.token}-{_mark(owner)}-"))
    note_made(folder, identity(folder))
    return folder


def remove_stale_own_folders() -> list[Path]:
    """Delete the folders of processes that are gone, killed as a rule; return their paths.

    They lie where others may write, too: only those of this user, or of a guest of his, and of this host are removed.
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
    """Return whether it is a folder of this user's, or one that root gave to a guest."""
    with contextlib.suppress(OSError):
        uid = entry.stat(follow_symlinks=False).st_uid
        is_given = os.getuid() == 0 and uid in GUEST_UIDS
        return entry.is_dir(follow_symlinks=False) and (uid == os.getuid() or is_given)
    return False


def _mark(owner: Owner) -> str:
    """The host, in short: a temporary folder may be shared with another one, whose processes are not seen here."""
    return hashlib.sha256(owner.host.encode()).hexdigest()[:8]
