"""The way of a cell from the request to the code that runs, without what the stock way spends on most cells in vain.

Theory of operation
    Of a cell of fifty lines the stock kernel makes tokens to find magics, compiles it once more to see if it awaits,
    and computes its file's name in Python: together that takes longer than to compile and run it. Here a text search
    comes first, which says that none of this is needed; where it cannot say so, the stock way is taken.
"""

import os
import re
from hashlib import sha1  # what code puts into a module is nothing to us
from tempfile import gettempdir
from typing import Any

from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core import inputtransformer2 as stock
from IPython.core.compilerop import CachingCompiler
from traitlets import Instance

_KNOWN = (stock.MagicAssign, stock.SystemAssign, stock.EscapedCommand, stock.HelpEnd)
_MAY_BE_ESCAPED = re.compile(r"[%?]|!(?!=)|^[ \t\f]*[,;/]", re.MULTILINE)  # for these four


class CellTransformer(stock.TransformerManager):
    """Makes Python of magics, commands and questions, as IPython does."""

    def do_token_transforms(self, lines: list[str]) -> list[str]:
        """Transform what is not Python within lines; none is if no escape character is there."""
        if tuple(self.token_transformers) == _KNOWN and not _MAY_BE_ESCAPED.search("\n".join(lines)):
            return lines
        transformed: list[str] = super().do_token_transforms(lines)
        return transformed


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
