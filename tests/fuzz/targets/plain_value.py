"""The text that a kernel shows of a value, read as plain data."""

from __future__ import annotations

from agent_tools.results.plain_data import plain_value
from tests.fuzz import unfold
from tests.fuzz.oracle import MIB, Bound, Parts, Target
from tests.fuzz.pieces import texts

ALLOWED = (int, float, complex, str, bytes, list, tuple, dict, set, bool, type(None))


def read(parts: Parts) -> None:
    """Read it: what comes is plain data all through."""
    waiting = [plain_value("".join(texts(parts)))]
    while waiting:
        value = waiting.pop()
        assert isinstance(value, ALLOWED), "no plain data"
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set)):
            waiting += value


TARGET = Target(
    read,
    lambda data: [unfold.text(data)],
    bound=Bound(bytes=20 * MIB),  # for MAX_PARTS nodes of a syntax tree
    words=(
        b"[",
        b"]",
        b"(1,)",
        b"{'a': ",
        b"...",
        b"set()",
        b"1e9",
        b"9" * 20,
        b"-",
        b"'\\x00'",
        b"b'a'",
        b"None",
        b"1j",
        b"nan",
        b"inf",
        b"np.float64(",
        b"np.True_",
    ),
)
