"""Write the runs of a session, with their outputs, as a Jupyter notebook.

The format is nbformat 4.5 (https://nbformat.readthedocs.io/en/latest/format_description.html). The same runs make the
same bytes: the id of a cell is a digest of its position and code.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
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

MAX_BYTES = 64 * MIB
"""Bytes of a notebook's outputs; pictures beyond them are left out, with a line that says so."""
ACTIVE = frozenset(("text/html", "image/svg+xml", "application/javascript", "text/javascript"))
"""Types that a browser runs once the notebook is trusted."""
LEFT_OUT = "[... a picture left out: the notebook has reached its limit ...]"
LANGUAGE = {"name": "python", "file_extension": ".py", "mimetype": "text/x-python", "pygments_lexer": "ipython3"}
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


class History:
    """The last runs of a session, at most `length`, and at most MAX_BYTES of pictures and text in all."""

    def __init__(self, length: int) -> None:
        self._runs: deque[tuple[str, Execution, int]] = deque(maxlen=length)
        self._bytes = 0

    @property
    def runs(self) -> list[tuple[str, Execution]]:
        """The code and the execution of each run, the oldest first."""
        return [(code, execution) for code, execution, _ in self._runs]

    def add(self, code: str, execution: Execution) -> None:
        """Add a run; the oldest runs are dropped if there is no room."""
        execution.changed.look()  # later runs change files again
        size = len(code) + sum(map(_size, execution.outputs))
        if len(self._runs) == self._runs.maxlen:
            self._drop()
        while self._runs and self._bytes + size > MAX_BYTES:
            self._drop()
        self._runs.append((code, execution, size))
        self._bytes += size

    def copy(self) -> History:
        """Return an independent history that begins with these runs."""
        copied = History(self._runs.maxlen or 0)
        copied._runs.extend(self._runs)
        copied._bytes = self._bytes
        return copied

    def _drop(self) -> None:
        self._bytes -= self._runs.popleft()[2]


def _size(output: Output) -> int:
    match output:
        case Result(data) | Display(data):
            return sum(
                len(value) if isinstance(value, (str, bytes)) else len(json.dumps(value)) for value in data.values()
            )
        case Stream(_, text):
            return len(text)
    return 0


def notebook_of(runs: Iterable[tuple[str, Execution]], *, rich: bool = False) -> Json:
    """Return runs of code and their outputs as a notebook; without `rich`, ACTIVE types are left out."""
    cells, places, room = [], dict[str, Json](), [MAX_BYTES]
    for number, (code, execution) in enumerate(runs, 1):
        shown = (_output(output, number, places, rich=rich, room=room) for output in execution.outputs)
        about: Json = {"duration": round(execution.duration, 3)}
        if files := [change.name for change in execution.changes]:
            about["files"] = files
        cells.append(code_cell(number, code, [each for each in shown if each], about))
    return notebook_from(cells)


def notebook_from(cells: Sequence[Json]) -> Json:
    """Return cells as a notebook."""
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"kernelspec": KERNEL, "language_info": LANGUAGE},
        "cells": list(cells),
    }


def code_cell(number: int, code: str, outputs: Sequence[Json], about: Mapping[str, Any] | None = None) -> Json:
    """Return a code cell, with outputs in the notebook's format and metadata about the run."""
    return {
        "id": _id(number, code),
        "cell_type": "code",
        "execution_count": number,
        "metadata": {"agent_tools": dict(about)} if about else {},
        "source": _lines(code),
        "outputs": list(outputs),
    }


def markdown_cell(number: int, text: str) -> Json:
    """Return a cell of Markdown."""
    return {"id": _id(number, text), "cell_type": "markdown", "metadata": {}, "source": _lines(text)}


def stream(name: str, text: str) -> Json:
    """Return text of stdout or stderr as an output."""
    return {"output_type": "stream", "name": name, "text": _lines(fold_lines(text))}


def display(data: MimeBundle, *, rich: bool = False) -> Json:
    """Return a value that was displayed as an output."""
    return {"output_type": "display_data", "data": _bundle(data, rich=rich), "metadata": {}}


def error(name: str, value: str, traceback: str) -> Json:
    """Return an exception as an output."""
    return {"output_type": "error", "ename": name, "evalue": value, "traceback": traceback.split("\n")}


def _output(output: Output, number: int, places: dict[str, Json], *, rich: bool, room: list[int]) -> Json | None:
    room[0] -= _size(output)
    match output:
        case Stream(name, text):
            return stream(name, text)
        case Notice() | Omitted() | Restarted():
            return stream("stderr", f"{output.text}\n")
        case Result(data) | Display(data) if room[0] < 0 and any(isinstance(each, bytes) for each in data.values()):
            return stream("stderr", f"{LEFT_OUT}\n")
        case Result(data):
            return {**display(data, rich=rich), "output_type": "execute_result", "execution_count": number}
        case Display(data, display_id, is_update):
            shown = display(data, rich=rich)
            if display_id and is_update and display_id in places:
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


def _id(number: int, text: str) -> str:
    return f"c{number}-{hashlib.sha256(f'{number} {text}'.encode('utf-8', 'replace')).hexdigest()[:12]}"


def _lines(text: str) -> list[str]:
    """Return the lines of a text as nbformat has them: each with its line feed; only line feeds end a line."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]
