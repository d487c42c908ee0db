"""Files that a command reads and writes on the host, maybe in a folder where code could plant links."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from agent_tools.machine.folder import opened, replacing
from agent_tools.machine.path_walk import parts_below


@contextmanager
def written(path: Path, work_dir: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Open a new file, which replaces the one at the path once it is written; in `work_dir` no link is followed.

    Raises:
        OSError: it cannot be written; a part of it is removed.
    """
    inside, target = parts_below(path, work_dir), path.resolve()
    if inside is None and target.exists() and not target.is_file():
        with open(target, "wb") as file:  # such as /dev/stdout
            yield file
        return
    folder, name = (target.parent, target.name) if inside is None else (work_dir, "/".join(inside))
    with replacing(folder, name, (os.getuid(), os.getgid()), mode) as file:
        yield file


@contextmanager
def read(path: Path, work_dir: Path) -> Iterator[BinaryIO]:
    """Open a file to read; in `work_dir` no link is followed.

    Raises:
        OSError: it cannot be read.
    """
    inside = parts_below(path, work_dir)
    if inside is None:
        with open(path, "rb") as file:
            yield file
        return
    with opened(work_dir, "/".join(inside)) as found:
        if found is None:
            raise FileNotFoundError(2, "No such file", str(path))
        yield found
