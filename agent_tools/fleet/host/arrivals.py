"""Arrivals at a session in pieces, or before their time: files that are not whole yet, words about runs to come."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Literal

from agent_tools.errors import FileRejected
from agent_tools.fleet.limits import LIMITS

Word = Literal["cancel", "drop"]


class Spools:
    """Files by name, each written from its beginning on; one that breaks off is dropped. Thread-safe.

    `check` is given the bytes of one and raises if they are too many.
    """

    def __init__(self, folder: Path, check: Callable[[int], None]) -> None:
        self._folder, self._check = folder, check
        self._files: dict[str, BinaryIO] = {}
        self._lock = threading.Lock()

    def add(self, name: str, offset: int, data: bytes) -> None:
        """Write the next piece; the one at 0 begins anew. Raises FileRejected: it is not the next, or too large."""
        with self._lock:
            file = self._files.pop(name, None)
            try:
                if offset == 0:
                    _close(file)
                    file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115  (closed when it is whole, or dropped)
                if file is None or file.tell() != offset:
                    raise FileRejected(f"{name} broke off while it was brought over")
                self._check(offset + len(data))
                file.write(data)
            except BaseException:
                _close(file)
                raise
            self._files[name] = file

    def whole(self, name: str, size: int | None = None) -> BinaryIO:
        """Return a file from its beginning, to be closed. Raises FileRejected: it does not have `size` bytes."""
        with self._lock:
            file = self._files.pop(name, None)
        if file is None or size not in (None, file.tell()):
            _close(file)
            raise FileRejected(f"{name} broke off while it was brought over")
        file.seek(0)
        return file

    def drop(self, name: str) -> None:
        """Forget a file, if it is there."""
        with self._lock:
            _close(self._files.pop(name, None))

    def close(self) -> None:
        """Forget all of them."""
        with self._lock:
            while self._files:
                _close(self._files.popitem()[1])


class Early:
    """Words about runs that are not there yet. Used under a lock."""

    def __init__(self) -> None:
        self._words: dict[str, Word] = {}

    def note(self, run: str, word: Word) -> None:
        """Remember it; a drop outdoes a cancel."""
        if self._words.get(run) != "drop":
            self._words[run] = word
        while len(self._words) > LIMITS.early_words:
            del self._words[next(iter(self._words))]

    def taken(self, run: str) -> Word | None:
        """Return what was said of a run, once."""
        return self._words.pop(run, None)


def _close(file: BinaryIO | None) -> None:
    if file is not None:
        file.close()
