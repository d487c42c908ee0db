"""Transforms and compiles cells.

Theory of operation
    For a cell of fifty lines the stock kernel looks for prompts line by line, makes tokens to find magics, compiles the
    cell once more to see if it awaits, and computes its file's name in Python: 1.3 ms, more than a whole warm call of
    `benchmarks/latency.py`, and 60 us of its `print(1)`. Here a text search comes first, which finds that none of this
    is needed, in 30 us; where it cannot say so, the stock way runs.

    The stock way also removes prompts and indentation where they are data: in strings, and in the text of `%%` cells.
    Here only cells whose first line of code has a prompt, or is indented, lose them: no valid Python begins so.
"""

import os
import re
from hashlib import sha1  # imported by name, before code can replace it
from tempfile import gettempdir
from typing import Any

from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core import inputtransformer2 as stock
from IPython.core.compilerop import CachingCompiler
from traitlets import Instance

from .history import CellHistory
from .interrupts import is_main_thread

_TOKENS = [stock.MagicAssign, stock.SystemAssign, stock.EscapedCommand, stock.HelpEnd]
_PROMPT = re.compile(r"\s*>>>(?!>)|((\[nav\]|\[ins\])?\ )?(In \[\d+\]:|\s*\.{3,}:)")
_ESCAPES = r"[%?]|!(?!=)|^[ \t\f]*[,;/]"  # of what IPython has beside Python
_MAY_BE_ESCAPED = re.compile(_ESCAPES, re.MULTILINE)  # for _TOKENS
_HEAD = r"(?:[^\S\n]*(?:#[^\n]*)?\n)*"  # blank lines and comments
_MAY_BE_CHANGED = re.compile(  # by _LINES, too
    rf"{_ESCAPES}|\A\s|\A{_HEAD}(?:\s|{_PROMPT.pattern})|[\r\v\f\x1c-\x1e\x85\u2028\u2029]", re.MULTILINE
)


def _first_line(lines: list[str]) -> str:
    """Return the first line of code: neither blank nor a comment."""
    return next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")


def _leading_indent(lines: list[str]) -> list[str]:
    return stock.leading_indent(lines) if _first_line(lines)[:1].isspace() else lines


def _prompts(lines: list[str]) -> list[str]:
    if not _PROMPT.match(_first_line(lines)):
        return lines
    stripped: list[str] = stock.ipython_prompt(stock.classic_prompt(lines))
    return stripped


_LINES = [stock.leading_empty_lines, _leading_indent, _prompts, stock.cell_magic]


class CellTransformer(stock.TransformerManager):
    """Transforms magics, commands and questions into Python, as IPython does; valid Python stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.cleanup_transforms = _LINES[:-1]

    def transform_cell(self, cell: str) -> str:
        """Transform IPython syntax; a cell of plain Python only gets a final line break."""
        if not self._is_as_made() or not cell or _MAY_BE_CHANGED.search(cell):
            transformed: str = super().transform_cell(cell)
            return transformed
        return cell if cell.endswith("\n") else f"{cell}\n"

    def do_token_transforms(self, lines: list[str]) -> list[str]:
        """Transform IPython syntax within lines; lines without an escape character are unchanged."""
        if self.token_transformers == _TOKENS and not _MAY_BE_ESCAPED.search("\n".join(lines)):
            return lines
        transformed: list[str] = super().do_token_transforms(lines)
        return transformed

    def _is_as_made(self) -> bool:
        """Return whether code has added no transformer, and taken none away."""
        of_lines = self.cleanup_transforms + self.line_transforms
        return bool(self.token_transformers == _TOKENS and of_lines == _LINES)


class CellCompiler(CachingCompiler):
    """Compiles cells under file names like those of ipykernel, from a fast digest."""

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        """Return the file name of a cell; the same text has the same one."""
        digest = sha1(raw_code.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()[:12]
        return os.path.join(gettempdir(), f"ipykernel_{os.getpid()}", f"{digest}.py")


class CellShell(ZMQInteractiveShell):
    """IPython's shell with a fast path for cells of plain Python."""

    input_transformer_manager = Instance(CellTransformer, ())
    depth = 0
    """How many cells of the main thread run, one within the other."""
    _transformed: tuple[str | None, str] = None, ""  # a request's cell, and the result of its transformation

    def init_history(self) -> None:
        """Keep inputs without a database."""
        self.history_manager = CellHistory(shell=self, parent=self)
        self.configurables.append(self.history_manager)

    def transform_cell(self, raw_cell: str) -> str:
        """Transform a cell's magics; once for each request, though ipykernel and IPython both ask for it."""
        if self._transformed[0] is raw_cell and not self.depth:
            return self._transformed[1]
        transformed: str = super().transform_cell(raw_cell)
        if not self.depth:
            self._transformed = raw_cell, transformed
        return transformed

    async def run_cell_async(self, *args: Any, **kwargs: Any) -> Any:
        """Run a cell."""
        self._transformed = None, ""  # code may change what the same text means
        level = int(is_main_thread())
        self.depth += level
        try:
            return await super().run_cell_async(*args, **kwargs)
        finally:
            self.depth -= level

    def should_run_async(self, raw_cell: str, *, transformed_cell: str, **failed: Any) -> bool:
        """Return whether a cell awaits; one with neither word in it does not."""
        if "await" not in transformed_cell and "async" not in transformed_cell:
            return False
        return bool(super().should_run_async(raw_cell, transformed_cell=transformed_cell, **failed))
