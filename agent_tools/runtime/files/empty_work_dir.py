"""The empty folder of a pre-warmed sandbox, which becomes a session's work_dir by a rename.

It lies beside the work_dirs that it is for, since a rename does not leave its file system. A record in the private
folder of this user names it, so that any process finds and removes the blanks of processes that were killed.

    <folder>/.agent-tools-blank-<pid>-<start time>-<random>
    <runtime dir>/blank-<pid>-<start time>-<random>            holds the path of the folder
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path

from agent_tools.engines.guest import Guest
from agent_tools.machine.owner import Owner, owner_is_gone
from agent_tools.machine.private_folder import opened_own, private_base
from agent_tools.runtime.files.work_dir import prepare_work_dir
from agent_tools.settings import runtime_dir

_FOLDER = ".agent-tools-blank-"
_RECORD = "blank-"
_RECORD_NAME = re.compile(rf"{_RECORD}(\d+-\d+)-[0-9a-f]{{16}}")


class EmptyWorkDir:
    """An empty folder, owned by its guest.

    It becomes a work_dir or is removed; then `forget` and `remove` have no effect.

    Raises:
        InvalidParams: folders of guests may not lie in `folder`.
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
        """Drop the record of a folder that a session has now."""
        self._record.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder if it still exists under its name and is empty, as before a session gets it."""
        _remove(self.path)
        self.forget()


def remove_stale_empty_work_dirs() -> list[Path]:
    """Delete empty folders of processes that are gone; return their paths."""
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
