"""The other names of work_dir, and renames from one of them to another.

Each name is a mount of the same folder, so that `find`, `tar` and `cp` see a folder. Linux renames within one mount
only; a rename between two names is done within the first of them.
"""

import contextlib
import errno
import os
from collections.abc import Callable
from functools import wraps
from typing import Any

from .wire.words import WORK_DIR_NAMES


def rename_across_names(work_dir: str) -> None:
    """Let this process, and its forks, rename and link files from one name of work_dir to another."""
    for name in ("rename", "replace", "link"):
        setattr(os, name, _across(getattr(os, name), work_dir))


def link_names(work_dir: str) -> None:
    """Link the names to work_dir where the engine has not mounted it: it cannot mount a folder in memory twice."""
    for name in WORK_DIR_NAMES:
        with contextlib.suppress(OSError):  # as a rule: it is a folder
            os.symlink(work_dir, name)


def _across(stock: Callable[..., Any], work_dir: str) -> Callable[..., Any]:
    @wraps(stock)
    def move(src: Any, dst: Any, **options: Any) -> Any:
        try:
            return stock(src, dst, **options)
        except OSError as exc:
            names = _first_name(src, work_dir), _first_name(dst, work_dir)
            if exc.errno != errno.EXDEV or options or not all(names):
                raise
        return stock(*names)

    return move


def _first_name(path: Any, work_dir: str) -> str:
    """Return a path below work_dir under its first name; '' for others."""
    with contextlib.suppress(TypeError, ValueError):
        text = os.path.abspath(os.fsdecode(path))
        for name in (work_dir, *WORK_DIR_NAMES):
            if text.startswith(f"{name}/"):
                return work_dir + text[len(name) :]
    return ""
