"""The order in which workers get the tests: file by file, so that a file's sandboxes are made once.

The contract suite is one file for all engines and transports. Each pair of them has a sandbox of its own, so each pair
goes to whichever worker is free, as a file does.
"""

from __future__ import annotations

import re

from xdist.scheduler import LoadFileScheduling

_PAIR = re.compile(r"\[(docker|process)-(sockets|stdio)\b")


class ByFileAndPair(LoadFileScheduling):
    """pytest-xdist's scheduling by file, with the contract suite cut into its pairs."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scope_of(nodeid: str) -> str:
    """The name of the unit of work that a test belongs to."""
    file, _, test = nodeid.partition("::")
    pair = _PAIR.search(test) if file.startswith("tests/contract/") else None
    return f"{file} {pair[1]}-{pair[2]}" if pair else file
