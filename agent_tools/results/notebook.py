"""Write the runs of a session, with their outputs, as a Jupyter notebook.

The format is nbformat 4.5 (https://nbformat.readthedocs.io/en/latest/format_description.html). The same runs make the
same bytes: the id of a cell is a digest of its position and code.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections import deque
from collections.abc import Iterable
from copy import copy
from typing import Any

from agent_tools.limits import MIB
from agent_tools.results.execution import Execution
from agent_tools.results.outputs import (
    Died,
    Display,
    Error,
    MimeBundle,
    Notice,
    Omitted,
    Output,
    Restarted,
    Result,
    Stream,
    TimedOut,
)
from agent_tools.text import fold_lines

Json = dict[str, Any]
Cell = tuple[str, Execution | None]
"""Code and its run; or, with None, a text in Markdown."""

MAX_BYTES = 64 * MIB
"""Bytes of a notebook's outputs; pictures beyond them are left out, with a line that says so."""
ACTIVE = frozenset(("text/html", "image/svg+xml", "application/javascript", "text/javascript"))
"""Types that a browser runs once the notebook is trusted."""
LEFT_OUT = "[... a picture left out: the notebook has reached its limit ...]"
LANGUAGE = {"name": "python", "file_extension": ".py", "mimetype": "text/x-python", "pygments_lexer": "ipython3"}
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


class History:
    """The last runs of a session, at most `length`, and at most MAX_BYTES of pictures and text in all.

    Attributes:
        runs: the code and the execution of each run, the oldest first.
    """

    def __init__(self, length: int) -> None:
        self.runs: deque[tuple[str, Execution]] = deque(maxlen=length)
        self._bytes = 0

    def add(self, code: str, execution: Execution) -> None:
        """Add a run; the oldest runs are dropped if there is no room."""
        execution.changed.look()  # later runs change files again
        self._bytes += _size(code, execution)
        while self.runs and (len(self.runs) == self.runs.maxlen or self._bytes > MAX_BYTES):
            self._bytes -= _size(*self.runs.popleft())
        self.runs.append((code, execution))

    def copy(self) -> History:
        """Return an independent history that begins with these runs."""
        copied = copy(self)
        copied.runs = self.runs.copy()
        return copied


def _size(code: str, execution: Execution) -> int:
    return len(code) + sum(map(_output_size, execution.outputs))


def _output_size(output: Output) -> int:
    match output:
        case Result(data) | Display(data):
            return sum(
                len(value) if isinstance(value, (str, bytes)) else len(json.dumps(value)) for value in data.values()
            )
        case Stream(_, text):
            return len(text)
    return 0


def notebook_of(cells: Iterable[Cell], *, rich: bool = False) -> Json:
    """Return runs of code with their outputs, and texts, as a notebook; without `rich`, ACTIVE types are left out."""
    made, places, room = [], dict[str, Json](), [MAX_BYTES]
    for number, (source, execution) in enumerate(cells, 1):
        id_ = f"c{number}-{hashlib.sha256(f'{number} {source}'.encode('utf-8', 'replace')).hexdigest()[:12]}"
        cell: Json = {"id": id_, "cell_type": "markdown", "metadata": {}, "source": _lines(source)}
        if execution is not None:
            shown = (_output(output, number, places, rich=rich, room=room) for output in execution.outputs)
            outputs = [each for each in shown if each]
            about = {"agent_tools": _about(execution)}
            cell |= {"cell_type": "code", "execution_count": number, "metadata": about, "outputs": outputs}
        made.append(cell)
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"kernelspec": KERNEL, "language_info": LANGUAGE},
        "cells": made,
    }


def _about(execution: Execution) -> Json:
    about = {"duration": round(execution.duration, 3), "files": [change.name for change in execution.changes]}
    return {name: value for name, value in about.items() if value}


def _output(output: Output, number: int, places: dict[str, Json], *, rich: bool, room: list[int]) -> Json | None:
    room[0] -= _output_size(output)
    match output:
        case Stream(name, text):
            return _stream(name, text)
        case Notice() | Omitted() | Restarted():
            return _stream("stderr", f"{output.text}\n")
        case Result(data) | Display(data) if room[0] < 0 and any(isinstance(each, bytes) for each in data.values()):
            return _stream("stderr", f"{LEFT_OUT}\n")
        case Result(data):
            value = {"data": _bundle(data, rich=rich), "metadata": {}}
            return {"output_type": "execute_result", "execution_count": number, **value}
        case Display(data, display_id, is_update):
            shown = {"output_type": "display_data", "data": _bundle(data, rich=rich), "metadata": {}}
            if is_update and display_id in places:
                places[display_id].update(shown)  # the earlier display shows the new value
                return None
            if display_id:
                places[display_id] = shown
            return shown
        case Error(name, value, traceback):
            return error(name, value, traceback)
        case TimedOut() | Died():
            return error(type(output).__name__, output.text.partition("\n")[0], output.text)
    return None  # calls of host functions


def _stream(name: str, text: str) -> Json:
    return {"output_type": "stream", "name": name, "text": _lines(fold_lines(text))}


def error(name: str, value: str, traceback: str) -> Json:
    """Return an exception as an output."""
    return {"output_type": "error", "ename": name, "evalue": value, "traceback": traceback.split("\n")}


def _bundle(data: MimeBundle, *, rich: bool) -> Json:
    found: Json = {}
    for mime, value in data.items():
        if mime in ACTIVE and not rich:
            continue
        if isinstance(value, bytes):
            found[mime] = base64.b64encode(value).decode() + "\n"
        else:
            found[mime] = _lines(value) if isinstance(value, str) else value
    return found or {"text/plain": [""]}


def _lines(text: str) -> list[str]:
    """Return the lines of a text as nbformat has them: each with its line feed; only line feeds end a line."""
    return list(io.StringIO(text, newline="\n"))
