"""The files of a session on another machine: what changed here goes before a run, what it changed comes after it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

from agent_tools.errors import FileRejected
from agent_tools.fleet.crossing import Ended, Files
from agent_tools.fleet.likeness import Likeness, all_or_none
from agent_tools.runtime.files.folder import Facts

Ask = Callable[..., Any]
"""Calls a method of the host for this session."""


class Exchange:
    """Of one work_dir; without a likeness, nothing is copied. Used by the thread whose turn it is."""

    def __init__(self, likeness: Likeness | None) -> None:
        self._likeness = likeness

    def begin_anew(self) -> None:
        """The host has nothing: all files are to go there."""
        if self._likeness:
            self._likeness.forget()

    def sent(self, ask: Ask, cancelled: threading.Event) -> Files | None:
        """Send larger files in pieces, and return those that travel with the run; None if it was cancelled meanwhile.

        Raises:
            FileRejected: there are too many, or they changed meanwhile; no code was run.
        """
        if self._likeness is None:
            return None if cancelled.is_set() else {}
        with all_or_none(self._likeness):
            news = self._likeness.news()
            small = self._likeness.small(news, noting=False)
            for name, facts in news.items():
                if name not in small and facts is not None:
                    self._send(name, facts, ask)
            if cancelled.is_set():
                return None
            self._likeness.note_all({name: news[name] for name in small})
        return small

    def _send(self, name: str, facts: Facts, ask: Ask) -> None:
        assert self._likeness
        sent = 0
        for piece in self._likeness.pieces(name, facts):
            ask("put_piece", name, facts, sent, piece)
            sent += len(piece)

    @property
    def replaced(self) -> Collection[str]:
        """The names of files here that a run has replaced."""
        return frozenset(self._likeness.replaced) if self._likeness else ()

    def fetched(self, ended: Ended, ask: Ask) -> str:
        """Bring what a run changed here; return what cannot be had, in words, '' if all can."""
        if self._likeness is None:
            return ""
        missing = [ended.missing] if ended.missing else []
        small = [len(data) for data in ended.files.values() if data is not None]
        try:
            self._likeness.refuse_excess([*small, *(facts[0] for facts in ended.larger.values())])
            self._likeness.take(ended.files)
        except FileRejected as exc:
            return f"changes to files: {exc}"
        missing += filter(None, (self._put(name, facts, ask) for name, facts in ended.larger.items()))
        return ", ".join(missing)

    def _put(self, name: str, facts: Facts, ask: Ask) -> str:
        """Fetch a larger file; return why it cannot be had, '' if it can."""
        assert self._likeness
        try:
            self._likeness.put(name, _pieces(name, facts, ask))
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
