"""Markdown that arrives in pieces, rendered on a terminal block by block."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from urllib.parse import unquote

from rich.console import Console
from rich.markdown import Markdown

from agent_tools.engines.engine import GUEST_WORK_DIR
from agent_tools.growing_text import GrowingText
from agent_tools.text import neutralise, one_line

MAX_BLOCK = 20_000  # characters; a larger block is printed as it is
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_CODE_OR_FORMULA = re.compile(
    r"(`+[^`]*`+|~{3,}[^~]*~{3,})|\$\$[^$]{1,2000}\$\$|(?<![\w$\\])\$(?![\s$])[^$\n]{0,500}(?<!\s)\$(?![\d$])"
    r"|\\\[(?:[^\\]|\\(?![\[\]])){1,2000}\\\]|\\\((?:[^\\]|\\(?![()])){1,2000}\\\)"
    r"|\]\((?P<file>sandbox:(?:[^()<>\n]|\([^()<>\n]{0,200}\)){1,500})\)"
)
_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")
_SCHEME = "sandbox:"
_WORK_DIRS = (f"{GUEST_WORK_DIR}/", "/mnt/data/")  # the second is the one that models know from their training


class MarkdownWriter:
    """Prints to `console`. Each character is looked at once. Files of the sandbox are in `folder`."""

    def __init__(self, console: Console, folder: Path = Path()) -> None:
        self._console = console
        self._folder = folder
        self._line = GrowingText()
        self._block: list[str] = []
        self._size = 0
        self._fence = ""
        self._is_over = False  # a blank line came, which ends the block unless an indented line follows

    def write(self, text: str) -> None:
        """Take the next piece."""
        first, *others = text.split("\n")
        self._line.append(first)
        for line in others:
            self._take(str(self._line))
            self._line = GrowingText()
            self._line.append(line)

    def end(self) -> None:
        """Print what is left."""
        if self._line:
            self._take(str(self._line))
            self._line = GrowingText()
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
            shown = self._rendered(text) if self._size <= MAX_BLOCK else text
            self._console.print(shown, markup=False, highlight=False)
            self._console.print()
        self._block, self._size, self._fence, self._is_over = [], 0, "", False

    def _rendered(self, text: str) -> Markdown:
        markdown = Markdown(_as_written(text), hyperlinks=False)
        for token in [child for block in markdown.parsed for child in block.children or ()]:
            address = token.attrs.get("href")
            if isinstance(address, str) and (path := _path_of(address, self._folder)):
                token.attrs["href"] = path
        return markdown


def _path_of(address: str, folder: Path) -> str | None:
    """Return the path of the file in `folder` that a link to a file of the sandbox is about; None if there is none."""
    name = unquote(address.removeprefix(_SCHEME))
    for place in _WORK_DIRS:
        name = name.removeprefix(place)
    path = folder / name
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # RuntimeError: a loop of links
        real = path.resolve()
        if address.startswith(_SCHEME) and real.is_relative_to(folder.resolve()) and real.is_file():
            return one_line(neutralise(str(path)))
    return None


def _as_written(text: str) -> str:
    """Escape formulas, and spaces in the names of files, so that Markdown reads them as the model meant them."""

    def escaped(found: re.Match[str]) -> str:
        if found["file"]:
            return f"](<{found['file']}>)"
        return found[0] if found[1] else _PUNCTUATION.sub(r"\\\g<0>", found[0])

    return _CODE_OR_FORMULA.sub(escaped, text)
