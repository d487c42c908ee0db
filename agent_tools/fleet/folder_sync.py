"""One side of a synchronised folder, with the state of the other side; used by both caller and host.

Between two runs the caller's work_dir is authoritative, during a run the host's. Regular files only; links are not
followed. Each side reports its changes since the last exchange; names from the other side are checked before anything
is written.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Union

from agent_tools.errors import FileRejected
from agent_tools.fleet.protocol import MAX_INLINE_BYTES, PIECE_BYTES, Files, RunEnded
from agent_tools.limits import Limits
from agent_tools.machine import folder
from agent_tools.machine.folder import Facts, Snapshot
from agent_tools.runtime.files.mirror import is_plain_name, refuse_full_disk, snapshot_of

Changed = Mapping[str, Union[Facts, None]]
"""Files by name; None for one that was deleted."""


class SyncedFolder:
    """Syncs one side of a folder. Call it with the session's lock. `owner` gets the files that are written here."""

    def __init__(self, path: Path, owner: tuple[int, int], limits: Limits) -> None:
        self.path = path
        self._owner = owner
        self._limits = limits
        self._known: Snapshot = {}
        self.replaced: set[str] = set()
        """The names of files here that were replaced since the last call of `news`."""

    def forget(self) -> None:
        """Forget the state of the other side: all files are new again."""
        self._known = {}

    def news(self) -> Changed:
        """Return the changes here since the last exchange.

        Raises:
            FileRejected: there are more entries than `max_work_dir_entries`.
        """
        self.replaced.clear()
        now = snapshot_of(self.path, self._limits)
        news: dict[str, Facts | None] = dict.fromkeys(self._known.keys() - now.keys())
        changed = (name for name, facts in now.items() if self._known.get(name) != facts)
        return {**news, **{name: now[name] for name in changed if is_plain_name(name)}}

    def small(self, news: Changed, *, noting: bool = True) -> Files:
        """Return the files that fit in one message, with contents; `noting` marks them as known to the other side."""
        left, files = MAX_INLINE_BYTES, dict[str, Union[bytes, None]]()
        for name, facts in news.items():
            if facts is None:
                files[name] = None
            elif facts[0] <= left:
                data = self.piece(name, facts, 0) if facts[0] else b""
                left -= len(data)
                files[name] = data
        if noting:
            self.note_all({name: news[name] for name in files})
        return files

    def pieces(self, name: str, facts: Facts) -> Iterator[bytes]:
        """Yield a file in pieces, at least one; after the last, the other side has it."""
        for offset in range(0, max(1, facts[0]), PIECE_BYTES):
            yield self.piece(name, facts, offset)
        self._known[name] = facts

    def piece(self, name: str, facts: Facts, offset: int) -> bytes:
        """Return a part of an unchanged file.

        Raises:
            FileRejected: it has changed since, or is gone.
        """
        with folder.opened(self.path, name) as file:
            if file is None or folder.facts_of(file) != facts:
                raise FileRejected(f"{name} changed while it was brought over")
            file.seek(offset)
            return file.read(min(PIECE_BYTES, facts[0] - offset))

    def note(self, name: str, facts: Facts) -> None:
        """Record that the other side has this version of the file."""
        self._known[name] = facts

    def note_all(self, news: Changed) -> None:
        """Record that the other side has these versions of the files."""
        for name, facts in news.items():
            if facts is None:
                self._known.pop(name, None)
            else:
                self._known[name] = facts

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        """Write a file of the other side.

        Raises:
            FileRejected: its name is not allowed, or the disk is full.
        """
        if not is_plain_name(name):
            raise FileRejected(f"a file has the unusable name {name!r:.80}")
        if name in self._known:
            self.replaced.add(name)
        try:
            self._known[name] = folder.replace(self.path, name, iter(chunks), self._owner)
        except OSError as exc:
            raise FileRejected(f"{name} could not be written: {exc.strerror}") from exc

    def take(self, files: Files) -> None:
        """Apply the other side's changes of files. Errors as for `put`."""
        for name, data in files.items():
            if data is not None:
                self.put(name, [data])
            elif known := self._known.pop(name, None):
                folder.delete(self.path, name, known)

    def refuse_excess(self, sizes: Iterable[int]) -> None:
        """Check that files of these sizes may come.

        Raises:
            FileRejected: together they are over `max_work_dir_bytes`, or would leave too little disk free.
        """
        needed = sum(sizes)
        if needed > self._limits.max_work_dir_bytes:
            raise FileRejected(f"the files are {needed:,} bytes, more than max_work_dir_bytes")
        refuse_full_disk(self.path, needed, self._limits)


@contextlib.contextmanager
def all_or_none(side: SyncedFolder) -> Iterator[None]:
    """Restart an exchange from the beginning after a failure."""
    try:
        yield
    except BaseException:
        side.forget()
        raise


# Copies files of a remote session: local changes before a run, the run's changes after it.


Ask = Callable[..., Any]
"""Calls a method of the host for this session."""


class FolderExchange:
    """Exchanges files of one work_dir; without `side`, nothing is copied. Call it with the session's lock."""

    def __init__(self, side: SyncedFolder | None) -> None:
        self._side = side

    def begin_anew(self) -> None:
        """Record that the host has no files: send all of them."""
        if self._side:
            self._side.forget()

    def sent(self, ask: Ask, cancelled: threading.Event) -> Files | None:
        """Send larger files in pieces, and return the small files for the run's message; None if cancelled meanwhile.

        Raises:
            FileRejected: there are too many, or they changed meanwhile; no code was run.
        """
        if self._side is None:
            return None if cancelled.is_set() else {}
        with all_or_none(self._side):
            news = self._side.news()
            small = self._side.small(news, noting=False)
            for name, facts in news.items():
                if name not in small and facts is not None:
                    self._send(name, facts, ask)
            if cancelled.is_set():
                return None
            self._side.note_all({name: news[name] for name in small})
        return small

    def _send(self, name: str, facts: Facts, ask: Ask) -> None:
        assert self._side
        sent = 0
        for piece in self._side.pieces(name, facts):
            ask("put_piece", name, facts, sent, piece)
            sent += len(piece)

    @property
    def replaced(self) -> Collection[str]:
        """The names of files here that a run has replaced."""
        return frozenset(self._side.replaced) if self._side else ()

    def fetched(self, ended: RunEnded, ask: Ask) -> str:
        """Fetch the files that a run changed; return a text on files that could not be fetched, else ''."""
        if self._side is None:
            return ""
        missing = [ended.missing] if ended.missing else []
        small = [len(data) for data in ended.files.values() if data is not None]
        try:
            self._side.refuse_excess([*small, *(facts[0] for facts in ended.larger.values())])
            self._side.take(ended.files)
        except FileRejected as exc:
            return f"changes to files: {exc}"
        missing += filter(None, (self._put(name, facts, ask) for name, facts in ended.larger.items()))
        return ", ".join(missing)

    def _put(self, name: str, facts: Facts, ask: Ask) -> str:
        """Fetch a larger file; return why this failed, or ''."""
        assert self._side
        try:
            self._side.put(name, _pieces(name, facts, ask))
        except FileRejected as exc:
            return f"changes to files: {exc}"
        return ""


def _pieces(name: str, facts: Facts, ask: Ask) -> Iterator[bytes]:
    offset = 0
    while offset < facts[0]:
        piece = ask("get_piece", name, facts, offset)
        if not piece:
            raise FileRejected(f"{name} changed while it was brought over")
        offset += len(piece)
        yield piece
