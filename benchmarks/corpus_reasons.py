"""Reasons why cells failed: each failure of a run over the corpus, sorted into one of a few reasons, by its own words.

Sorting asks, in this order: was it stopped; does the message name the sandbox, the network, a missing package, a
missing file; is it a known sign of a library or a language that moved on; does the cell use what an earlier failed cell
should have made. What is left is the libraries' too if another set of pins runs that cell, and else the code's own: it
needs a program, a person at the keyboard, or was never right.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any

REASONS = (
    *("ran", "drift", "missing package", "network", "missing data", "too slow", "too large", "after a failed cell"),
    *("own", "ours"),
)


@dataclass(frozen=True)
class Outcome:
    """The end of one cell. `kind`: ran, failed (with the exception's name and message), slow, died, refused."""

    repository: str
    path: str
    cell: int
    code: str
    kind: str
    name: str = ""
    message: str = ""
    traceback: str = ""
    is_meant_to_fail: bool = False

    @property
    def key(self) -> tuple[str, str, int]:
        """The cell's place in the corpus."""
        return self.repository, self.path, self.cell

    @classmethod
    def read(cls, line: dict[str, Any]) -> Outcome:
        """Read one line of a run."""
        names = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in line.items() if name in names})


_OURS = re.compile(
    r"Read-only file system|Operation not permitted|Function not implemented|not available in this sandbox"
    r"|libGL|No module named '(agent_tools|ipykernel|IPython|pwd|grp)|getpwuid|cannot open shared object"
    r"|No space left on device|Cannot allocate memory|can't start new thread|Too many open files|\.tests[.']"
)
_NETWORK = re.compile(
    r"Name or service not known|Temporary failure in name resolution|Network is unreachable|urlopen error|Max retries"
    r"|Failed to resolve|Connection (refused|aborted)|No address associated|RemoteDataError|couldn't connect"
    r"|is not one of the example datasets"
)
_NETWORK_NAMES = frozenset(("URLError", "HTTPError", "ConnectionError", "gaierror", "NameResolutionError", "SSLError"))
_MODULE = re.compile(r"No module named '?([\w.]+)'?")
_PACKAGE = re.compile(
    r"optional dependency|[Mm]agic (function )?`%+\w*` not found|requires \w+, an optional|requires \w+ to be available"
)
_NO_FILE = re.compile(
    r"No such file or directory|not found\.$|does not exist\.?$|File .* does not exist|File .* not found"
    r"|No columns to parse from file|unable to open database file|no such table"
)
_OLD_PYTHON = re.compile(
    r"name '(xrange|unicode|raw_input|reduce|unichr|basestring|long|file|execfile|cmp|reload)' is not defined"
    r"|Missing parentheses in call to|invalid hexadecimal|leading zeros in decimal"
)
_DRIFT = re.compile(
    r"unexpected keyword argument|has no attribute|cannot import name|was removed|has been removed|no longer"
    r"|is deprecated|positional arguments? but|Invalid frequency|is not a valid package style|Could not convert"
    r"|could not convert string to float|agg function failed|not supported for dtype|incompatible dtype|must be keyword"
    r"|Unrecognized|Invalid value .* for dtype|does not support|InvalidParameterError|is not a valid value for"
    r"|has dtype|Cannot interpret|Cannot (subset|perform|mask|setitem)|inhomogeneous shape|expired"
    r"|destination is read-only|has no setter|must be a sequence|Passing a bool"
)
_DRIFT_NAMES = frozenset(
    (
        "InvalidParameterError",
        "AxisError",
        "ChainedAssignmentError",
        "SyntaxError",
        "OptionError",
        "_IncompleteInputError",
    )
)
_SURE_DRIFT = re.compile(
    r"(module '[\w.]+'|type object '\w+'|'(DataFrame|Series|Index|\w+Index|ndarray|\w+Plot|Axes\w*|Figure)' object) "
    r"has no attribute|cannot import name|Invalid frequency|is not a valid package style|got an unexpected keyword"
)
STACK = frozenset(
    ("numpy", "pandas", "matplotlib", "mpl_toolkits", "scipy", "sklearn", "seaborn", "sympy", "statsmodels", "PIL")
)


def sort_all(runs: Sequence[Sequence[Outcome]]) -> list[list[str]]:
    """Return the reason of each outcome of each run. Runs of the same cells help each other: see `own`."""
    sorted_runs = [sort_run(run) for run in runs]
    ran = {each.key for run, reasons in zip(runs, sorted_runs) for each, why in zip(run, reasons) if why == "ran"}
    return [
        ["drift" if reason == "own" and outcome.key in ran else reason for outcome, reason in zip(run, reasons)]
        for run, reasons in zip(runs, sorted_runs)
    ]


def sort_run(run: Sequence[Outcome]) -> list[str]:
    """Return the reason of each outcome of one run, by itself."""
    reasons: list[str] = []
    for _, notebook in groupby(run, key=lambda outcome: (outcome.repository, outcome.path)):
        reasons += _sort_notebook(list(notebook))
    return reasons


def _sort_notebook(cells: Sequence[Outcome]) -> list[str]:
    """Sort a notebook's outcomes, following which names hold what a failed cell should have made."""
    reasons, spoilt, made = [], set[str](), set[str]()
    for outcome in cells:
        names = Names.of(outcome.code)
        reason = _reason(outcome, bool(names.used & spoilt))
        is_good = reason == "ran" and outcome.kind == "ran"
        if is_good and not names.used & spoilt:
            spoilt -= names.made
        elif not is_good or names.used & spoilt:
            spoilt |= names.made
        made |= names.made
        if outcome.kind in ("slow", "died"):  # the kernel may have gone, and all variables with it
            spoilt |= made
        reasons.append(reason)
    return reasons


def _reason(outcome: Outcome, uses_spoilt: bool) -> str:
    if outcome.kind == "ran":
        return "ran"
    if outcome.kind == "slow":
        return "too slow"
    if outcome.kind == "died":
        return "too large" if "memory" in outcome.message else "ours"
    if outcome.kind == "refused":
        return "ours"
    return _reason_of_error(outcome, uses_spoilt)


def _reason_of_error(outcome: Outcome, uses_spoilt: bool) -> str:
    message = f"{outcome.name}: {outcome.message}"
    if outcome.is_meant_to_fail:
        return "ran"
    if _OURS.search(message) or outcome.name == "PermissionError":
        return "ours"
    if outcome.name in _NETWORK_NAMES or _NETWORK.search(message):
        return "network"
    if module := _MODULE.search(message):
        return "drift" if module[1].split(".")[0] in STACK and "." in module[1] else "missing package"
    if _PACKAGE.search(message):
        return "missing package"
    if outcome.name == "FileNotFoundError" or _NO_FILE.search(message):
        return "after a failed cell" if uses_spoilt else "missing data"
    if _OLD_PYTHON.search(message) or _SURE_DRIFT.search(message):
        return "drift"
    if uses_spoilt:
        return "after a failed cell"
    return "drift" if outcome.name in _DRIFT_NAMES or _DRIFT.search(message) else "own"


@dataclass(frozen=True)
class Names:
    """The names that code uses, and those it binds or changes in place."""

    used: frozenset[str]
    made: frozenset[str]

    @classmethod
    def of(cls, code: str) -> Names:
        """Read them off the code; magics and shell lines have none."""
        plain = "\n".join(_plain(line) for line in code.splitlines())
        try:
            nodes = list(ast.walk(ast.parse(plain)))
        except (SyntaxError, ValueError):
            words = frozenset(re.findall(r"\b[A-Za-z_]\w*", plain))
            return cls(words, frozenset(re.findall(r"^([A-Za-z_]\w*)\s*=", plain, re.MULTILINE)))
        return cls(frozenset(_used(nodes)), frozenset(_made(nodes)))


def _plain(line: str) -> str:
    """Return a line without IPython's own syntax."""
    bare = re.sub(r"^(\s*)%(?:timeit|time|prun)\b(?:\s+-\w+\s*\w*)*\s*", r"\1", line)
    return re.sub(r"^(\s*)[%!].*", r"\1pass", re.sub(r"=\s*[!%].*", "= None", re.sub(r"\?+\s*$", "", bare)))


def _used(nodes: Iterable[ast.AST]) -> Iterable[str]:
    return (node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))


def _made(nodes: Sequence[ast.AST]) -> Iterable[str]:
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).split(".")[0]
        elif isinstance(node, (ast.Subscript, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
            yield from _root(node)


def _root(node: ast.AST) -> Iterable[str]:
    """Yield the name whose part is assigned: df of `df.loc[0, "a"] = 1`."""
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id
