"""The work_dirs that this process made itself and no sandbox has had yet: nobody else can know them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

from agent_tools.machine.folder import Identity

MOST = 1_000  # folders that are remembered: those that were made last

_lock = threading.Lock()
_made: OrderedDict[tuple[str, Identity], None] = OrderedDict()


def note_made(folder: Path, identity: Identity) -> None:
    """Remember a folder that was just made."""
    with _lock:
        _made[str(folder), identity] = None
        while len(_made) > MOST:
            _made.popitem(last=False)


def is_made_here(folder: Path, identity: Identity) -> bool:
    """Return whether this very folder was made here and is remembered."""
    with _lock:
        return (str(folder), identity) in _made


def forget_made(folder: Path) -> None:
    """Forget a folder that a sandbox has now."""
    with _lock:
        for known in [each for each in _made if each[0] == str(folder)]:
            del _made[known]
