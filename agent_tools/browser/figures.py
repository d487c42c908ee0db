"""Files that pages load: those that all pages share, and the JavaScript libraries that draw interactive figures.

The libraries are not part of this package: `scripts/try figures` downloads them. They lie in a folder that the operator
names, or in the package `agent_tools_figures`, which has only these files.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "agent_tools_figures"
FRAME = "frame/figure.html"
"""The document without an origin in which a library draws a figure."""
STYLE = "style/output.css"
"""The style of outputs, which pages share."""
SCRIPTS = ("elements.js", "text/table.js", "text/interactive.js", "text/output.js")
"""The scripts that pages share, each after those it imports."""
LIBRARIES = {
    "plotly": ("plotly.min.js",),
    "vega": ("vega.min.js", "vega-lite.min.js", "vega-interpreter.js"),
}


def shared_file(name: str) -> Path:
    """Return the path of a file that pages share."""
    return Path(__file__).parent / "assets" / name


@lru_cache(maxsize=8)
def figure_libraries(folder: str) -> dict[str, tuple[str, ...]]:
    """Return the libraries that have all their files, with the files' names. `folder` is '' for the package."""
    place = _place(folder)
    return {
        name: files for name, files in LIBRARIES.items() if place and all((place / file).is_file() for file in files)
    }


def library_file(folder: str, name: str) -> Path | None:
    """Return the path of a library's file; None if it does not exist."""
    place = _place(folder)
    return place / name if place and any(name in files for files in figure_libraries(folder).values()) else None


def _place(folder: str) -> Path | None:
    if folder:
        return Path(folder)
    spec = find_spec(PACKAGE)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None
