"""The history of one kernel as clients ask for it: https://jupyter-client.readthedocs.io/en/stable/messaging.html#history."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

Entries = list[tuple[int, str]]
"""Lines with the numbers of their cells."""

Told = list[tuple[int, int, Any]]
"""Cells as IPython tells of them: the session, which is 0, the number, and the line, with the output if asked for."""


def recall(manager: Any) -> None:
    """Let IPython's magics find what this kernel ran: there is no database to look into."""
    manager.search = partial(_search, manager)
    manager.get_tail = partial(_tail, manager)


def entries(manager: Any, kind: str, raw: bool, output: bool, asked: Mapping[str, Any]) -> Told:
    """Return what is asked for as IPython tells it; arguments as for `select`."""
    found = select(manager.input_hist_raw if raw else manager.input_hist_parsed, kind, asked)
    return [(0, number, (line, None) if output else line) for number, line in found]


def _search(
    manager: Any,
    pattern: str = "*",
    raw: bool = True,
    search_raw: bool = True,
    output: bool = False,
    n: int | None = None,
    unique: bool = False,
) -> Told:
    return entries(manager, "search", raw, output, {"pattern": pattern, "n": n, "unique": unique})


def _tail(manager: Any, n: int = 10, raw: bool = True, output: bool = False, include_latest: bool = False) -> Told:
    found = entries(manager, "tail", raw, output, {"n": n if include_latest else n + 1})
    return found if include_latest else found[:-1]


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
