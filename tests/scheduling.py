"""The order in which workers get the tests: file by file, so that a file's sandboxes are made once.

The contract suite is one file for all engines and transports. Each pair of them has a sandbox of its own, so each pair
goes to whichever worker is free, as a file does. The longest files come first, so that no worker is left with one when
the others are done; `scripts/test` prints the slowest tests. Files that build and remove images which share layers go
to one worker: an engine that removes one of them takes the layers out from under another that is being built. So do
files that parse all sources (tests/sources.py).
"""

from __future__ import annotations

import re

from xdist.scheduler import LoadFileScheduling

_PAIR = re.compile(r"\[(docker|process)-(sockets|stdio)\b")
_LONG = re.compile(
    r"tests/(contract|deploy|docker|browser|clients|wires)/"
    r"|/test_(hostile_kernel|limits|house|script|chat|responses)\.py"
)
_LONGEST = re.compile(
    r"tests/contract/test_(session|kernel)|/test_(transports|faults|page|cli|hostile|limits|hostile_kernel|compose)\.py"
)
_TOGETHER = {
    "derived images": re.compile(r"tests/docker/test_(cli|debian_packages)\.py"),
    "sources": re.compile(r"tests/test_(laws|rules)\.py"),
}


class ByFileAndPair(LoadFileScheduling):
    """pytest-xdist's scheduling by file, with the contract suite cut into its pairs."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def turn_of(nodeid: str) -> int:
    """The place of a test's file in the order: files of one place keep their own order."""
    file = nodeid.partition("::")[0]
    return 0 if _LONGEST.search(file) else 1 if _LONG.search(file) else 2


def scope_of(nodeid: str) -> str:
    """The name of the unit of work that a test belongs to."""
    file, _, test = nodeid.partition("::")
    for unit, files in _TOGETHER.items():
        if files.search(file):
            return unit
    pair = _PAIR.search(test) if file.startswith("tests/contract/") else None
    return f"{file} {pair[1]}-{pair[2]}" if pair else file
