"""The history of one kernel as clients ask for it: https://jupyter-client.readthedocs.io/en/stable/messaging.html#history."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

Entries = list[tuple[int, str]]
"""Lines with the numbers of their cells."""


def select(
    inputs: Sequence[str],
    kind: str,
    session: int = 0,
    start: int = 0,
    stop: "int | None" = None,
    n: "int | None" = None,
    pattern: "str | None" = None,
    unique: bool = False,
) -> Entries:
    """Return what a client asks for: the `tail`, a `range`, or a `search` for a pattern with * and ?.

    `inputs` begins with one that is no cell's. Earlier sessions than the one that runs, 0, are not known.
    """
    cells = list(enumerate(inputs))[1:]
    if kind == "range":
        return [] if session else cells[max(0, start - 1) : None if stop is None else max(0, stop - 1)]
    if kind == "search":
        cells = [(number, line) for number, line in cells if fnmatchcase(line, pattern or "*")]
        if unique:
            latest = {line: number for number, line in cells}
            cells = [(number, line) for number, line in cells if latest[line] == number]
    elif kind != "tail":
        return []
    return cells if n is None else cells[-n:] if n > 0 else []
