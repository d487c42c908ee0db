"""The page that clients of MCP Apps show beside an answer, and the outputs of the newest runs for it.

The protocol is https://github.com/modelcontextprotocol/ext-apps, version 2026-01-26. The page is a resource of its own;
the answers of tools are the same with and without it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from mcp_types import TextResourceContents

from agent_tools.bodies.json_body import size_of
from agent_tools.browser.figures import FRAME, SCRIPTS, STYLE, figure_libraries, library_file, shared_file
from agent_tools.browser.outputs import live_outputs
from agent_tools.containers.keys import first_of_most
from agent_tools.limits import MIB
from agent_tools.mcp.activity import Activity, CodeActivity, CommandActivity
from agent_tools.mcp.answers import files_of
from agent_tools.mcp.shapes import GotOutputs
from agent_tools.version import __version__

EXTENSION = "io.modelcontextprotocol/ui"
MIME = "text/html;profile=mcp-app"
BASE = f"ui://agent-tools/{__version__}/"
PAGE = f"{BASE}result.html"
MAX_RUNS = 16  # whose outputs are remembered; the oldest of the key with most is forgotten first
MAX_OUTPUTS = 8 * MIB  # of JSON, for one run
_IMPORT = re.compile(r"^import .*;\n|^export (?=\w)", re.MULTILINE)
_HERE = Path(__file__).parent / "page"


def page_resource(uri: str, folder: str) -> TextResourceContents | None:
    """Return a file of the page, or of a library for figures in `folder`; None for any other URI."""
    name = uri.removeprefix(BASE)
    if uri == PAGE:
        return TextResourceContents(uri=uri, mime_type=MIME, text=_page(), _meta={"ui": {"prefersBorder": True}})
    if uri == name:
        return None
    path, mime = (shared_file(FRAME), "text/html") if name == FRAME else (library_file(folder, name), "text/javascript")
    return TextResourceContents(uri=uri, mime_type=mime, text=path.read_text(encoding="utf-8")) if path else None


@lru_cache(maxsize=1)
def _page() -> str:
    """Return the page as one document without imports, since it may load nothing."""
    page, style = (path.read_text(encoding="utf-8") for path in (_HERE / "result.html", shared_file(STYLE)))
    scripts = (path.read_text(encoding="utf-8") for path in (*map(shared_file, SCRIPTS), _HERE / "result.js"))
    return page.replace("/* STYLE */", style).replace("/* SCRIPTS */", _IMPORT.sub("", "\n".join(scripts)))


class PageRuns:
    """The outputs of the newest runs. For any thread."""

    def __init__(self, figures: str) -> None:
        self._figures = figures
        self._lock = threading.Lock()
        self._runs: list[tuple[str, str, GotOutputs]] = []  # with the owner and the source

    def add(self, activity: Activity, failure: str = "") -> None:
        """Store the outputs of a run that has ended; `failure` says why it could not be run.

        Not for an event loop: there may be large pictures.
        """
        if activity.is_shown:
            return
        place = activity.place
        execution = activity.execution if isinstance(activity, CodeActivity) else None
        found = GotOutputs(
            container=place.container,
            status="done",
            outputs=list(_bounded(_outputs(activity, failure))),
            files=files_of(place.container, execution.changes) if execution else [],
            base=BASE,
            libraries=figure_libraries(self._figures),
        )
        with self._lock:
            if not activity.is_shown:  # nor was it by another thread
                self._runs.append((place.owner, activity.source, found))
            activity.is_shown = True
            if len(self._runs) > MAX_RUNS:
                del self._runs[first_of_most([owner for owner, *_ in self._runs])]

    def find(self, owner: str, container: str, source: str) -> GotOutputs:
        """Return the outputs of the newest run of this code or command, of any if it is ''."""
        for owns, ran, found in self._runs[::-1]:
            if (owns, found.container) == (owner, container) and source in ("", ran):
                return found
        return GotOutputs(container=container, status="unknown")


def _outputs(activity: Activity, failure: str) -> Iterator[dict[str, Any]]:
    match activity:
        case CodeActivity(execution=execution):
            for output in execution.outputs if execution else ():
                yield from live_outputs(output)
        case CommandActivity(result=result):
            yield from ({"kind": name, "text": text} for name, text in activity.texts.items() if text)
            if result and not result.ok:
                yield {"kind": "error", "text": result.reason or f"exit code {result.exit_code}"}
    if failure:
        yield {"kind": "error", "text": failure}


def _bounded(outputs: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    left, left_out = MAX_OUTPUTS, 0
    for output in outputs:
        size = size_of(output, MAX_OUTPUTS)
        if size > left:
            left_out += 1
        else:
            left -= size
            yield output
    if left_out:
        yield {"kind": "note", "text": f"[... {left_out} outputs too large for this page left out ...]"}
