"""The archives of a sandbox, which may give anything as a tar, and say anything of its variables.

The input is a program (see unfold.py): an object is an answer, a text is content. `R` as first byte: the bytes
themselves.
"""

from __future__ import annotations

from agent_tools.limits import MIB, Limits
from agent_tools.results.variables import VariablesReport
from agent_tools.runtime.files.archives import MAX_NAME, MAX_REASON, Archives, opened
from agent_tools.runtime.files.guest_files import GuestFiles
from tests.fuzz.oracle import Bound, Parts, Target
from tests.fuzz.targets.guest_files import FRAMES, ask_each, unfold_answers

WORDS = (
    "address",
    "report",
    "kept",
    "missing",
    "left_out",
    "errno",
    "a",
    "agent_tools-0",
    "x" * 300,
    "\x1b[2J",
    "\ud800",
)
LIMITS = Limits(max_archive_bytes=MIB, max_variables=1_000, max_listed_files=1_000)
MOVES = frozenset("\x08\t\n\r\x0b\x0c\x1b\x85\u2028\u2029\u202e")  # what would leave the line, or turn it
LONGEST = 12  # characters that stand for one that is escaped


def ask(parts: Parts) -> None:
    """Save and load: what comes is within the limits, or an error that says so."""
    opened(b"".join(parts))
    ask_each((_save, _save_variables, _load_variables), parts, LIMITS)


def _save(files: GuestFiles) -> None:
    assert sum(map(len, Archives(files, LIMITS).save(".", MIB))) <= MIB


def _save_variables(files: GuestFiles) -> None:
    with Archives(files, LIMITS).saving(".") as saving:
        assert len(saving.address) <= MAX_NAME
        assert sum(map(len, saving.content(MIB))) <= MIB
        _check(saving.report())


def _load_variables(files: GuestFiles) -> None:
    with Archives(files, LIMITS).loading(".") as loading:
        loading.give(iter(()))
        _check(loading.report())


def _check(report: VariablesReport) -> None:
    assert len(report.kept) + len(report.missing) <= 2 * LIMITS.max_variables
    assert all(len(name) <= MAX_NAME * LONGEST and not MOVES.intersection(name) for name in report.kept)
    assert all(len(each.reason) <= MAX_REASON * LONGEST for each in report.missing)
    assert len(str(report)) < 100_000


TARGET = Target(
    ask,
    unfold_answers,
    bound=Bound(seconds=1.0),
    vocabulary=WORDS,
    words=(
        b'{"address": "a"}',
        b'{"report": null}',
        b'{"left_out": [["a", "b"]]}',
        b'{"report": {"kept": ["a"], "missing": [["b", "c"]]}}',
        *FRAMES,
    ),
)
