"""Adapts libraries that expect a screen, a browser or a notebook page to output of text and pictures.

Theory of operation
    An adapter gets a module of a library right after the module was imported, and changes names in it. It runs in the
    kernel only, so scripts that the code starts see the library as it is. Where an adapter fails, as it may with a
    version of the library that nobody knew here, the library stays as it is.
"""

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from . import display
from .charts import adapt_altair, adapt_plotly
from .interrupts import shielded
from .magics import say

Adapter = Callable[[Any], None]
OF_GLYPHS = ("Glyph ", "Matplotlib currently does not support ")  # begin what is said of what no font can draw
GUEST = os.path.dirname(os.path.dirname(__file__))  # where our own code is
MAX_SAID = 1_000  # texts that are remembered


def adapt(shell: Any) -> None:
    """Adapt the libraries that code imports into this process from now on."""
    shown = display.Shown(shell)

    def without_person(adapter: Adapter) -> Adapter:
        return lambda module: None if shell.has_person else adapter(module)

    ImportHooks(
        {
            "matplotlib.pyplot": shown.adapt,
            "plotly.io._renderers": without_person(adapt_plotly),
            "altair.vegalite.v5.display": without_person(adapt_altair),
            "altair.vegalite.v6.display": without_person(adapt_altair),
            "tqdm.notebook": without_person(_adapt_tqdm),
            "rich.console": without_person(_adapt_rich),
            "multiprocessing.pool": _adapt_pools,
        }
    ).install()
    logging.getLogger("matplotlib.font_manager").addFilter(Once())
    warnings.showwarning = Warnings(warnings.showwarning).show


class ImportHooks:
    """A module finder like the stock one, which runs an adapter after a module's own code."""

    def __init__(self, adapters: Mapping[str, Adapter]) -> None:
        self._adapters = dict(adapters)

    def install(self) -> None:
        """Adapt modules that are imported from now on, and modules that have been imported already."""
        sys.meta_path.insert(0, self)
        for name in self._adapters.keys() & sys.modules.keys():
            self._adapt(name, sys.modules[name])

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that has an adapter; None for all others."""
        if name not in self._adapters:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._adapt(name, module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # the loader is this spec's own
        return spec

    def _adapt(self, name: str, module: ModuleType) -> None:
        with contextlib.suppress(Exception):  # whatever an unknown version of a library raises
            self._adapters[name](module)


class Once(logging.Filter):
    """Passes each text once: matplotlib says for every text of a figure that a font is missing."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is new, or is not a warning."""
        text = record.getMessage()
        is_new = record.levelno != logging.WARNING or text not in self._said
        if len(self._said) < MAX_SAID:
            self._said.add(text)
        return is_new


class Warnings:
    """Shows warnings without paths of agent_tools, and a missing glyph once in a session."""

    def __init__(self, stock: Callable[..., None]) -> None:
        self._stock = stock
        self._glyphs: set[str] = set()

    def show(
        self, message: Any, category: type[Warning], filename: str, lineno: int, *more: Any, **kwargs: Any
    ) -> None:
        """Do as `warnings.showwarning`. That a fork has no threads, as Python warns of our own, is meant."""
        if category is DeprecationWarning and filename.startswith(GUEST):
            return
        text = str(message)
        is_of_glyph = text.startswith(OF_GLYPHS)
        if is_of_glyph:
            glyph = text.partition(" missing from ")[0]  # before the fonts, in any order
            if glyph in self._glyphs:
                return
            if len(self._glyphs) < MAX_SAID:
                self._glyphs.add(glyph)
        if is_of_glyph or filename.startswith(GUEST):
            say(f"{category.__name__}: {text}")
        else:
            self._stock(message, category, filename, lineno, *more, **kwargs)


def _adapt_tqdm(notebook: Any) -> None:
    """Let `tqdm.notebook` draw its bars as text; without IProgress, `tqdm.auto` does not ask for widgets."""
    std = sys.modules["tqdm.std"]
    notebook.tqdm = notebook.tqdm_notebook = std.tqdm
    notebook.trange = notebook.tnrange = std.trange
    del notebook.IProgress


def _adapt_rich(console: Any) -> None:
    """Let rich print text, which it would show as HTML in a notebook."""
    console._is_jupyter = lambda: False


def _adapt_pools(pool: Any) -> None:
    """Delay an interrupt while a pool is made: half of one would start workers for ever, and could not be ended."""
    pool.Pool.__init__ = shielded(pool.Pool.__init__)
