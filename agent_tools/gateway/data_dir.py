"""The folder of a gateway's data: only its owner may enter it, and it has an id that tells it from others."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from agent_tools.errors import InvalidParams
from agent_tools.gateway.config import DATABASE

FOLDER_ID = "folder-id"  # the file with the id
_MAX_ID = 64  # characters
_DATABASES = [f"{DATABASE}{end}" for end in ("", "-wal", "-shm", "-journal")]
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def prepare_data_dir(path: Path) -> None:
    """Make the folder. One that exists is closed to others if it is empty or a gateway's, and so is its database.

    Raises:
        InvalidParams: it cannot be made, or others may enter it and it holds something else.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = path.stat()
        if found.st_mode & _OTHERS and found.st_uid == os.getuid():
            _close(path)
        elif found.st_mode & stat.S_IRWXO:
            raise InvalidParams(f"data_dir={path} is another user's, and open to all: give a folder of your own.")
        for name in _DATABASES:
            with contextlib.suppress(FileNotFoundError, PermissionError):  # the latter: it is another user's
                (path / name).chmod(0o600)
    except OSError as exc:
        raise InvalidParams(f"data_dir={path} cannot be made ({exc.strerror}). Give a folder of your own.") from exc


def _close(path: Path) -> None:
    names = {each.name for each in path.iterdir()} - {"lost+found"}
    if names and not names & {FOLDER_ID, DATABASE}:
        mode = stat.S_IMODE(path.stat().st_mode)
        raise InvalidParams(
            f"data_dir={path} is open to other users (mode {mode:04o}), and holds other things: give a folder of its "
            f"own, or close it: chmod 700 {path}"
        )
    path.chmod(0o700)


def folder_id(path: Path) -> str:
    """Return the id of the folder, which its first gateway writes into it."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    known = path / FOLDER_ID
    made = path / f"{FOLDER_ID}.{secrets.token_hex(8)}"
    if not known.exists():
        made.write_text(secrets.token_hex(16), encoding="ascii")
        with contextlib.suppress(FileExistsError):
            os.link(made, known)  # atomically, and never over another gateway's file
        made.unlink()
    return known.read_text(encoding="ascii", errors="replace")[:_MAX_ID]
