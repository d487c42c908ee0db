"""An empty SQLite database of a gateway: a copy of one that has all revisions, which take longer than most tests.

A store still looks at the copy as at any database, and would apply what is missing.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import sqlalchemy as sa

Prepare = Callable[[sa.Engine], None]


def with_copies(prepare: Prepare) -> Prepare:
    """Return what prepares a database in the same way, but begins a new file with all revisions."""

    def begun(engine: sa.Engine) -> None:
        path = Path(engine.url.database or "")
        if engine.dialect.name == "sqlite" and path.is_absolute() and not path.exists():
            _begin(path, _content(prepare))
        prepare(engine)

    return begun


def _begin(path: Path, content: bytes) -> None:
    """Make the whole file at once, unless another is first, or it cannot be made, which is for the store to tell."""
    beside = path.with_name(f"{path.name}.{os.urandom(8).hex()}")
    with contextlib.suppress(OSError):
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            file.write(content)
        try:
            os.link(beside, path)
        finally:
            beside.unlink()


@cache
def _content(prepare: Prepare) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        engine = sa.create_engine(f"sqlite:///{folder}/s.db")
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")  # as the store has it
        prepare(engine)
        engine.dispose()
        return Path(folder, "s.db").read_bytes()
