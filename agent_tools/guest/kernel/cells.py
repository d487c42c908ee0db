"""Transforms and compiles cells, and keeps their history.

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
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from hashlib import sha1  # imported by name, before code can replace it
from tempfile import gettempdir
from typing import Any

from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core import inputtransformer2 as stock
from IPython.core.compilerop import CachingCompiler
from IPython.core.history import HistoryManager
from traitlets import Instance

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


class CellHistory(HistoryManager):
    """Keeps the inputs of this kernel in memory, without a database."""

    _i00 = _i = _ii = _iii = ""  # plain attributes: observers are not needed

    def store_inputs(self, line_num: int, source: str, source_raw: str | None = None) -> None:
        """Keep a cell's input for `%history`, `In`, `_i`, `_ii`, `_iii` and `_i<number>`."""
        raw = (source if source_raw is None else source_raw).rstrip("\n")
        if self._exit_re.match(raw.strip()):
            return
        self.input_hist_parsed.append(source.rstrip("\n"))
        self.input_hist_raw.append(raw)
        self._iii, self._ii, self._i, self._i00 = self._ii, self._i, self._i00, raw
        latest = {"_i": self._i, "_ii": self._ii, "_iii": self._iii, f"_i{line_num}": raw}
        self.shell.push(latest, interactive=False)


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


# The history of one kernel, for clients and magics.
#
# https://jupyter-client.readthedocs.io/en/stable/messaging.html#history


Entries = list[tuple[int, str]]
"""Lines with the numbers of their cells."""

IPythonEntries = list[tuple[int, int, Any]]
"""Cells in IPython's form: the session, which is 0, the number, and the line, with the output if asked for."""


def recall_history(manager: Any) -> None:
    """Let IPython's magics search the inputs of this kernel instead of a database."""
    manager.search = partial(_search, manager)
    manager.get_tail = partial(_tail, manager)


def history_entries(manager: Any, kind: str, raw: bool, output: bool, asked: Mapping[str, Any]) -> IPythonEntries:
    """Return cells in IPython's form; arguments as for `select_history`."""
    found = select_history(manager.input_hist_raw if raw else manager.input_hist_parsed, kind, asked)
    return [(0, number, (line, None) if output else line) for number, line in found]


def _search(
    manager: Any,
    pattern: str = "*",
    raw: bool = True,
    search_raw: bool = True,
    output: bool = False,
    n: int | None = None,
    unique: bool = False,
) -> IPythonEntries:
    return history_entries(manager, "search", raw, output, {"pattern": pattern, "n": n, "unique": unique})


def _tail(
    manager: Any, n: int = 10, raw: bool = True, output: bool = False, include_latest: bool = False
) -> IPythonEntries:
    found = history_entries(manager, "tail", raw, output, {"n": n if include_latest else n + 1})
    return found if include_latest else found[:-1]


def select_history(inputs: Sequence[str], kind: str, asked: Mapping[str, Any]) -> Entries:
    """Return the cells a client asks for: the `tail`, a `range`, or a `search` for a pattern with * and ?.

    The first of `inputs` belongs to no cell. Only the current session, 0, has history.
    """
    cells = list(enumerate(inputs))[1:]
    if kind == "range":
        start, stop = asked.get("start") or 0, asked.get("stop")
        return [] if asked.get("session") else cells[max(0, start - 1) : None if stop is None else max(0, stop - 1)]
    if kind == "search":
        cells = [(number, line) for number, line in cells if fnmatchcase(line, asked.get("pattern") or "*")]
        if asked.get("unique"):
            latest = {line: number for number, line in cells}
            cells = [(number, line) for number, line in cells if latest[line] == number]
    elif kind != "tail":
        return []
    most = asked.get("n")
    return cells if most is None else cells[-most:] if most > 0 else []
