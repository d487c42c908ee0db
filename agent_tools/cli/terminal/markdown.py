"""Markdown that arrives in pieces, rendered on a terminal block by block.

A block is printed when the next one begins, or at the end: a fence of code, a list or a paragraph is never cut. The
address of a link is printed beside its label, so no label hides where a link leads.
"""

from __future__ import annotations

import re

from rich.console import Console
from rich.markdown import Markdown

MAX_BLOCK = 20_000  # characters; a larger block is printed as it is
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class MarkdownWriter:
    """Prints to `console`. Each character is looked at once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._line = ""
        self._block: list[str] = []
        self._size = 0
        self._fence = ""
        self._is_over = False  # a blank line came, which ends the block unless an indented line follows

    def write(self, text: str) -> None:
        """Take the next piece."""
        *lines, rest = text.split("\n")
        for line in lines:
            self._take(self._line + line)
            self._line = ""
        self._line += rest

    def end(self) -> None:
        """Print what is left."""
        if self._line:
            self._take(self._line)
            self._line = ""
        self._print()

    def _take(self, line: str) -> None:
        if self._is_over and line.strip() and not line.startswith(("  ", "\t")):
            self._print()
        self._block.append(line)
        self._size += len(line)
        fence = _FENCE.match(line)
        if self._fence:
            closes = fence and fence[1].startswith(self._fence) and not line[fence.end() :].strip()
            self._fence = "" if closes else self._fence
        elif fence:
            self._fence = fence[1]
        self._is_over = not self._fence and (self._is_over or bool(self._block)) and not line.strip()

    def _print(self) -> None:
        text = "\n".join(self._block)
        if text.strip():
            shown = Markdown(text, hyperlinks=False) if self._size <= MAX_BLOCK else text
            self._console.print(shown, markup=False, highlight=False)
            self._console.print()
        self._block, self._size, self._fence, self._is_over = [], 0, "", False
