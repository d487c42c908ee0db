"""The work_dirs that this process made and no sandbox has used yet; no other process knows them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

from agent_tools.machine.path_walk import Identity

MOST = 1_000  # folders that are remembered, the newest
_lock = threading.Lock()
_made: OrderedDict[tuple[str, Identity], None] = OrderedDict()


def note_made(folder: Path, identity: Identity) -> None:
    """Remember a folder that was just made."""
    with _lock:
        _made[str(folder), identity] = None
        while len(_made) > MOST:
            _made.popitem(last=False)


def is_made_here(folder: Path, identity: Identity) -> bool:
    """Return whether this process made this folder and still remembers it."""
    with _lock:
        return (str(folder), identity) in _made


def forget_made(folder: Path) -> None:
    """Forget a folder that a sandbox has now."""
    with _lock:
        for known in [each for each in _made if each[0] == str(folder)]:
            del _made[known]
