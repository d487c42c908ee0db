"""The history of one kernel, for clients and magics: in memory, without a database.

https://jupyter-client.readthedocs.io/en/stable/messaging.html#history
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from IPython.core.history import HistoryManager


class CellHistory(HistoryManager):
    """Keeps the inputs of this kernel in memory, without a database."""

    _i00 = _i = _ii = _iii = ""  # plain attributes: observers are not needed

    def store_inputs(self, line_num: int, source: str, source_raw: str | None = None) -> None:
        """Keep a cell's input for `%history`, `In`, `_i`, `_ii`, `_iii` and `_i<number>`."""
        raw = (source if source_raw is None else source_raw).rstrip("\n")
        if self._exit_re.match(raw.strip()):
            return
        self.input_hist_parsed.append(source.rstrip("\n"))
        self.input_hist_raw.append(raw)
        self._iii, self._ii, self._i, self._i00 = self._ii, self._i, self._i00, raw
        latest = {"_i": self._i, "_ii": self._ii, "_iii": self._iii, f"_i{line_num}": raw}
        self.shell.push(latest, interactive=False)


Entries = list[tuple[int, str]]
"""Lines with the numbers of their cells."""

IPythonEntries = list[tuple[int, int, Any]]
"""Cells in IPython's form: the session, which is 0, the number, and the line, with the output if asked for."""


def recall_history(manager: Any) -> None:
    """Let IPython's magics search the inputs of this kernel instead of a database."""
    manager.search = partial(_search, manager)
    manager.get_tail = partial(_tail, manager)


def history_entries(manager: Any, kind: str, raw: bool, output: bool, asked: Mapping[str, Any]) -> IPythonEntries:
    """Return cells in IPython's form; arguments as for `select_history`."""
    found = select_history(manager.input_hist_raw if raw else manager.input_hist_parsed, kind, asked)
    return [(0, number, (line, None) if output else line) for number, line in found]


def _search(
    manager: Any,
    pattern: str = "*",
    raw: bool = True,
    search_raw: bool = True,
    output: bool = False,
    n: int | None = None,
    unique: bool = False,
) -> IPythonEntries:
    return history_entries(manager, "search", raw, output, {"pattern": pattern, "n": n, "unique": unique})


def _tail(
    manager: Any, n: int = 10, raw: bool = True, output: bool = False, include_latest: bool = False
) -> IPythonEntries:
    found = history_entries(manager, "tail", raw, output, {"n": n if include_latest else n + 1})
    return found if include_latest else found[:-1]


def select_history(inputs: Sequence[str], kind: str, asked: Mapping[str, Any]) -> Entries:
    """Return the cells a client asks for: the `tail`, a `range`, or a `search` for a pattern with * and ?.

    The first of `inputs` belongs to no cell. Only the current session, 0, has history.
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
