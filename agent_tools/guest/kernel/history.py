"""The history of one kernel as clients ask for it: https://jupyter-client.readthedocs.io/en/stable/messaging.html#history."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

Entries = list[tuple[int, str]]
"""Lines with the numbers of their cells."""


def select(inputs: Sequence[str], kind: str, asked: Mapping[str, Any]) -> Entries:
    """Return what a client asks for: the `tail`, a `range`, or a `search` for a pattern with * and ?.

    `inputs` begins with one that is no cell's. Earlier sessions than the one that runs, 0, are not known.
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
