"""Modules that every kernel of a sandbox starts with: PID 1 imports them, and kernels are forks of it.

State that must differ between kernels is made again in each. Settings that the import changes are put back. A module
that starts a thread is an error: a fork would lose the thread, and the locks it holds would stay locked.
"""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

VARIABLE = "AGENT_TOOLS_PRELOAD"
WITHOUT_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Environment for the time of the import, for allocators that would start a thread."""
TASKS = "/proc/self/task"


def names() -> list[str]:
    """Remove the list of modules from the environment, and return it."""
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
    """Use the imported modules once. That fills caches (fonts, glyphs, parsers).

    In a kernel it also copies the pages that the modules write, which a kernel shares with PID 1 until the first write
    to each: these writes take time, better before a cell than within it.
    """
    if pandas := sys.modules.get("pandas"):
        _read_table(pandas)
    if "matplotlib.pyplot" in sys.modules:
        _draw_figure(sys.modules["matplotlib"])


def renew() -> None:
    """Seed numpy's global generator in a kernel: a fork inherits its state. Python's own generator seeds itself."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _along() -> list[str]:
    """Return the modules that a first figure imports, except the inline backend, which changes settings."""
    if "matplotlib.pyplot" not in sys.modules:
        return []
    tables = ["pandas.plotting._matplotlib"] if "pandas" in sys.modules else []
    return ["IPython.core.pylabtools", *tables]


def _read_table(pandas: Any) -> None:
    table = pandas.read_csv(io.StringIO("a,b\n1,x\n2,y\n"))
    table.groupby("b")["a"].mean().to_frame()._repr_html_()
    table.describe()


def _draw_figure(matplotlib: Any) -> None:
    """Draw one figure, without a trace in pyplot or its settings."""
    with matplotlib.rc_context():
        figure = matplotlib.figure.Figure()
        axes = figure.subplots()
        axes.plot([1, 2], [3, 4], label="a")
        axes.bar([1, 2], [0.5, 1])
        axes.set_title("Title 1.0")
        axes.set_xlabel("x")
        axes.legend()
        figure.savefig(io.BytesIO(), format="png", bbox_inches="tight")


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
