"""Modules that every kernel of a sandbox is born with: PID 1 imports them, and kernels are forks of it.

What has to differ from kernel to kernel is made anew in each. What a user could see of the import is put back. A module
that leaves a thread behind is refused: a fork would lose the thread, and with it whatever lock it holds.
"""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

VARIABLE = "AGENT_TOOLS_PRELOAD"
WITHOUT_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Of allocators that would start a thread when they are loaded, for the time of the import."""
TASKS = "/proc/self/task"


def names() -> list[str]:
    """Take the list of modules out of the environment."""
    return [name for name in os.environ.pop(VARIABLE, "").split(",") if name]


def preload(modules: list[str]) -> None:
    """Import modules, and use them once.

    Raises:
        ImportError: there is no such module in the image.
        RuntimeError: one has started a thread.
    """
    with _environment(WITHOUT_THREADS):
        for name in modules:
            __import__(name)
            if len(os.listdir(TASKS)) > 1:
                raise RuntimeError(f"{name} starts a thread when it is imported, so it cannot be preloaded")
        use()
        for name in _along():
            __import__(name)
    if len(os.listdir(TASKS)) > 1:
        raise RuntimeError(f"one of {', '.join(modules)} starts a thread when it is used, so it cannot be preloaded")


def use() -> None:
    """Use what is imported once: that fills caches (fonts, glyphs, parsers), and in a kernel makes the pages its own.

    A kernel shares its pages with PID 1 until it writes, and each first writing takes time: better before a cell.
    """
    if pandas := sys.modules.get("pandas"):
        _read_table(pandas)
    if "matplotlib.pyplot" in sys.modules:
        from .first_figure import draw  # which loads matplotlib's drawing

        draw()


def renew() -> None:
    """In a kernel: seed numpy's global generator, which a fork inherits as it is; Python's own seeds itself."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _along() -> list[str]:
    """The modules that the first figure of a kernel imports, but the inline backend, which changes settings then."""
    if "matplotlib.pyplot" not in sys.modules:
        return []
    tables = ["pandas.plotting._matplotlib"] if "pandas" in sys.modules else []
    return ["IPython.core.pylabtools", *tables]


def _read_table(pandas: Any) -> None:
    table = pandas.read_csv(io.StringIO("a,b\n1,x\n2,y\n"))
    table.groupby("b")["a"].mean().to_frame()._repr_html_()
    table.describe()


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables that are not set, for a while."""
    fresh = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(fresh)
    try:
        yield
    finally:
        for name in fresh:
            del os.environ[name]
