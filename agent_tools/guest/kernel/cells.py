"""The way of a cell from the request to the code that runs, without what the stock way spends on most cells in vain.

Theory of operation
    Of a cell of fifty lines the stock kernel looks for prompts line by line, makes tokens to find magics, compiles it
    once more to see if it awaits, and computes its file's name in Python: together that takes longer than to compile
    and run it. Of a single line it splits off the first word, to ask seven checkers what that stands for. Here a text
    search comes first, which says that none of this is needed; where it cannot say so, the stock way is taken.

    The stock way also takes prompts and indentation away where they are data: in strings, and in the text of `%%`
    cells. Here only cells whose first line of code has a prompt, or is indented, lose them: no valid Python begins so.
"""

import builtins
import os
import re
from hashlib import sha1  # what code puts into a module is nothing to us
from keyword import iskeyword
from tempfile import gettempdir
from typing import Any

from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core import inputtransformer2 as stock
from IPython.core.autocall import IPyAutocall
from IPython.core.compilerop import CachingCompiler
from IPython.core.history import HistoryManager
from IPython.core.macro import Macro
from IPython.core.prefilter import PrefilterManager
from traitlets import Instance

_TOKENS = [stock.MagicAssign, stock.SystemAssign, stock.EscapedCommand, stock.HelpEnd]
_PROMPT = re.compile(r"\s*>>>(?!>)|((\[nav\]|\[ins\])?\ )?(In \[\d+\]:|\s*\.{3,}:)")
_ESCAPES = r"[%?]|!(?!=)|^[ \t\f]*[,;/]"  # of what IPython has beside Python
_MAY_BE_ESCAPED = re.compile(_ESCAPES, re.MULTILINE)  # for _TOKENS
_HEAD = r"(?:[^\S\n]*(?:#[^\n]*)?\n)*"  # blank lines and comments
_MAY_BE_CHANGED = re.compile(  # by _LINES, too
    rf"{_ESCAPES}|\A\s|\A{_HEAD}(?:\s|{_PROMPT.pattern})|[\r\v\f\x1c-\x1e\x85\u2028\u2029]", re.MULTILINE
)
_FIRST_WORD = re.compile(r"[^\W\d]\w*")
_CALLED_BY_NAME = Macro, IPyAutocall  # such objects run where a line only names them


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
    """Makes Python of magics, commands and questions, as IPython does; valid Python stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.cleanup_transforms = _LINES[:-1]

    def transform_cell(self, cell: str) -> str:
        """Transform what is not Python; of a cell that is nothing else only the last line's end is seen to."""
        if not self._is_as_made() or not cell or _MAY_BE_CHANGED.search(cell):
            transformed: str = super().transform_cell(cell)
            return transformed
        return cell if cell.endswith("\n") else f"{cell}\n"

    def do_token_transforms(self, lines: list[str]) -> list[str]:
        """Transform what is not Python within lines; none is if no escape character is there."""
        if self.token_transformers == _TOKENS and not _MAY_BE_ESCAPED.search("\n".join(lines)):
            return lines
        transformed: list[str] = super().do_token_transforms(lines)
        return transformed

    def _is_as_made(self) -> bool:
        """Return whether code has added no transformer, and taken none away."""
        of_lines = self.cleanup_transforms + self.line_transforms
        return bool(self.token_transformers == _TOKENS and of_lines == _LINES)


class CellPrefilter(PrefilterManager):
    """Finds the magics, macros and callables that the first word of a single line stands for."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._made_with = len(self.checkers), len(self.transformers)

    def prefilter_lines(self, lines: str, continue_prompt: bool = False) -> str:
        """Return what lines stand for; one that begins with a name of the code's or of Python's is taken as it is."""
        if not continue_prompt and self._is_python(line := lines.rstrip("\n")):
            return line
        filtered: str = super().prefilter_lines(lines, continue_prompt)
        return filtered

    def _is_python(self, line: str) -> bool:
        found = _FIRST_WORD.match(line)
        if not found or "\n" in line or self.shell.autocall or self._has_more():
            return False
        word, names = found[0], self.shell.user_ns
        if word in names:
            return not isinstance(names[word], _CALLED_BY_NAME)
        return hasattr(builtins, word) or iskeyword(word)

    def _has_more(self) -> bool:
        """Return whether code has registered anything that wants to see each line."""
        return (len(self.checkers), len(self.transformers)) != self._made_with


class CellHistory(HistoryManager):
    """Keeps the inputs of this kernel, and no more: no database is waiting for them."""

    _i00 = _i = _ii = _iii = ""  # plain, since nobody observes them

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
    """Compiles cells under the file names that ipykernel gives them, made of a digest that costs nothing."""

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        """Return the file name of a cell; the same text has the same one."""
        digest = sha1(raw_code.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()[:12]
        return os.path.join(gettempdir(), f"ipykernel_{os.getpid()}", f"{digest}.py")


class CellShell(ZMQInteractiveShell):
    """IPython's shell, which takes a cell that is plain Python for what it is."""

    input_transformer_manager = Instance(CellTransformer, ())
    depth = 0
    """How many cells run, one within the other."""
    _transformed: tuple[str | None, str] = None, ""  # a request's cell, and what its magics were made of

    def init_history(self) -> None:
        """Keep inputs without a database."""
        self.history_manager = CellHistory(shell=self, parent=self)
        self.configurables.append(self.history_manager)

    def init_prefilter(self) -> None:
        """Look at single lines in the short way."""
        self.prefilter_manager = CellPrefilter(shell=self, parent=self)
        self.configurables.append(self.prefilter_manager)
        self.prefilter = self.prefilter_manager.prefilter_lines

    def transform_cell(self, raw_cell: str) -> str:
        """Transform a cell's magics; those of a request once: ipykernel and IPython both ask for it."""
        if self._transformed[0] is raw_cell and not self.depth:
            return self._transformed[1]
        transformed: str = super().transform_cell(raw_cell)
        if not self.depth:
            self._transformed = raw_cell, transformed
        return transformed

    async def run_cell_async(self, *args: Any, **kwargs: Any) -> Any:
        """Run a cell."""
        self._transformed = None, ""  # what code does may change what the same text means
        self.depth += 1
        try:
            return await super().run_cell_async(*args, **kwargs)
        finally:
            self.depth -= 1

    def should_run_async(self, raw_cell: str, *, transformed_cell: str, **failed: Any) -> bool:
        """Return whether a cell awaits; one with neither word in it does not."""
        if "await" not in transformed_cell and "async" not in transformed_cell:
            return False
        return bool(super().should_run_async(raw_cell, transformed_cell=transformed_cell, **failed))
