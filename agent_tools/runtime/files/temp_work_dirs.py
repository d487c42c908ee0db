"""The work_dir of a sandbox that nobody gave one: a temporary folder, named for the process that it ends with.

<temporary folder>/agent-tools-<pid>-<start time>-<host>-<random>
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path

from agent_tools.engines.engine import Guest
from agent_tools.machine.folder import identity
from agent_tools.machine.guest_ids import GUEST_UIDS
from agent_tools.machine.owner import Owner, opened_own, owner_is_gone, private_base
from agent_tools.machine.removal import remove_tree
from agent_tools.runtime.files.work_dir import note_made, prepare_work_dir
from agent_tools.settings import runtime_dir

_PREFIX = "agent-tools-"
_NAME = re.compile(rf"{_PREFIX}(\d+-\d+)-([0-9a-f]{{8}})-\w+")


def make_temp_work_dir() -> Path:
    """Make a fresh folder that only this user may enter.

    Raises:
        OSError: there is no room for it.
    """
    owner = Owner.current()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{owner.token}-{_mark(owner)}-"))
    note_made(folder, identity(folder))
    return folder


def remove_stale_temp_work_dirs() -> list[Path]:
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


# The empty folder of a sandbox made ahead, which becomes a session's work_dir by a rename.
#
# It lies beside the work_dirs that it is for, since a rename does not leave its file system. A record in the private
# folder of this user names it, so that any process finds and removes the blanks of processes that were killed.
#
#     <folder>/.agent-tools-blank-<pid>-<start time>-<random>
#     <runtime dir>/blank-<pid>-<start time>-<random>            holds the path of the folder


_FOLDER = ".agent-tools-blank-"
_RECORD = "blank-"
_RECORD_NAME = re.compile(rf"{_RECORD}(\d+-\d+)-[0-9a-f]{{16}}")


class EmptyWorkDir:
    """One such folder, given to its guest. It ends as a work_dir or is removed; `forget` and `remove` may follow both.

    Raises:
        InvalidParams: `folder` is none in which folders of guests may lie.
        EngineError: records cannot be kept.
        OSError: there is no room for it.
    """

    def __init__(self, folder: Path, guest_of: Callable[[Path], Guest]) -> None:
        name = f"{Owner.current().token}-{secrets.token_hex(8)}"
        path = Path(os.path.abspath(folder)) / f"{_FOLDER}{name}"
        self._record = private_base() / f"{_RECORD}{name}"
        self._record.write_bytes(os.fsencode(path))  # first, so that no end of this process leaves an unknown folder
        try:
            self.path = prepare_work_dir(path, guest_of(path))
        except BaseException:
            _remove(path)
            self.forget()
            raise

    def forget(self) -> None:
        """Drop the record of a folder that is a session's now."""
        self._record.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder, if it is still there under its name and empty, as it is before a session has it."""
        _remove(self.path)
        self.forget()


def remove_stale_empty_work_dirs() -> list[Path]:
    """Delete the blanks of processes that are gone; return their paths. Only an empty folder of that name goes."""
    base, removed = runtime_dir(), []
    with contextlib.suppress(OSError), opened_own(base) as folder:
        for record in os.listdir(folder):
            name = _RECORD_NAME.fullmatch(record)
            if name and owner_is_gone(name[1]):
                path = Path(os.fsdecode((base / record).read_bytes()))
                if path.name == f"{_FOLDER}{record.removeprefix(_RECORD)}":
                    _remove(path)
                    removed.append(path)
                os.unlink(record, dir_fd=folder)
    return removed


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(path)
