"""Small inputs that stand for large ones, so that a fuzzer of small inputs finds what only large ones show.

In text and bytes, 0xF5 (no byte of UTF-8) and two more stand for repetition of what came before: `F5 a b` is the last
`a` bytes many times over; how many, `b` says (see `times_byte`). A JSON value is made by a small machine with a stack,
so that any bytes are values, and a small change of the bytes is a small change of the values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

REPEAT = 0xF5
MOST = 256 * 1024  # bytes of an unfolded text
MOST_NODES = 20_000  # of all values together
MOST_CHARS = 256 * 1024
_FEW, _POWERS, _RARE = 6, 21, 216


def text(data: bytes, most: int = MOST) -> bytes:
    """The bytes that an input stands for, `most` of them."""
    first, *rest = data.split(bytes((REPEAT,)))
    out = bytearray(first)
    for part in rest:
        if len(part) >= 2:
            unit = bytes(out[-(part[0] or 1) :])
            times = min(_times(part[1]) - 1, (most - len(out)) // max(1, len(unit)))
            out += unit * max(0, times)
        out += part[2:]
    return bytes(out[:most])


def repeat(size: int, power: int) -> bytes:
    """What to put behind `size` bytes to have them 2**power times."""
    return bytes((REPEAT, size, times_byte(power)))


def times_byte(power: int) -> int:
    """The operand for 2**power times. Most operands mean few: inputs that stand for little are judged sooner."""
    return power if power < _FEW else _RARE + (power - _RARE) % _POWERS


def _times(operand: int) -> int:
    return 1 << (operand % _FEW if operand < _RARE else operand % _POWERS)


class _Machine:
    """Each operation is a byte, with its operands behind it; what lacks operands does nothing."""

    def __init__(self, program: bytes, words: Sequence[str]) -> None:
        self._program = program
        self._at = 0
        self._words = words
        self._stack: list[tuple[Any, int]] = []  # values and how many parts they count for
        self._left = MOST_NODES
        self._chars = MOST_CHARS

    def run(self) -> list[Any]:
        while self._at < len(self._program) and self._left > 0:
            operation = OPERATIONS[self._byte() % len(OPERATIONS)]
            operation(self)
        return [value for value, _ in self._stack]

    def _byte(self) -> int:
        self._at += 1
        return self._program[self._at - 1] if self._at <= len(self._program) else 0

    def _take(self, size: int) -> bytes:
        self._at += size
        return self._program[self._at - size : self._at]

    def _push(self, value: Any, size: int = 1) -> None:
        self._stack.append((value, size))
        self._left -= 1

    def _pop(self, most: int) -> list[tuple[Any, int]]:
        most = min(most, len(self._stack))
        taken = self._stack[len(self._stack) - most :]
        del self._stack[len(self._stack) - most :]
        return taken

    def constant(self) -> None:
        self._push((None, True, False, "", 0.5, math.nan, math.inf, 1e308)[self._byte() % 8])

    def small(self) -> None:
        self._push(self._byte() - 8)

    def power(self) -> None:
        """One less than a power of two, where types and hashes end."""
        self._push((1 << self._byte() % 70) - 1)

    def literal(self) -> None:
        text = self._take(self._byte()).decode("utf-8", "surrogateescape")
        self._push(text, _weight(text))

    def word(self) -> None:
        self._push(self._words[self._byte() % len(self._words)] if self._words else "")

    def array(self) -> None:
        items = self._pop(self._byte())
        self._push([value for value, _ in items], 1 + sum(size for _, size in items))

    def object(self) -> None:
        items = self._pop(2 * (self._byte() % 32))
        pairs = zip(items[::2], items[1::2])
        self._push({_key(key): value for (key, _), (value, _) in pairs}, 1 + sum(size for _, size in items))

    def same(self) -> None:
        """An array of the same again and again."""
        self._many(lambda value, count: [value] * count)

    def series(self) -> None:
        """An array of multiples of a number, or of texts that differ."""
        self._many(lambda value, count: [_nth(value, index) for index in range(count)])

    def keyed(self) -> None:
        """An object of many keys."""
        self._many(lambda value, count: {f"k{index}": value for index in range(count)})

    def nested(self) -> None:
        self._many(_nested)

    def long(self) -> None:
        """A text many times over."""
        for value, size in self._pop(1):
            count = min(_times(self._byte()), self._chars // max(1, len(value) if isinstance(value, str) else 1))
            self._chars -= count * len(value) if isinstance(value, str) else 0
            made = value * max(1, count) if isinstance(value, str) else value
            self._push(made, max(size, _weight(made)))

    def again(self) -> None:
        for value, size in self._stack[-1:]:
            self._push(value, size)
            self._left -= size

    def _many(self, make: Callable[[Any, int], Any]) -> None:
        count = _times(self._byte())
        for value, size in self._pop(1):
            count = max(1, min(count, self._left // max(1, size)))
            self._left -= count * size
            self._push(make(value, count), 1 + count * size)


OPERATIONS = (
    *(_Machine.constant, _Machine.small, _Machine.power, _Machine.literal, _Machine.word, _Machine.array),
    *(_Machine.object, _Machine.same, _Machine.series, _Machine.keyed, _Machine.nested, _Machine.long, _Machine.again),
)


def values(program: bytes, words: Sequence[str] = ()) -> list[Any]:
    """The JSON values that a program makes, each a part of what `words` and the program hold."""
    return _Machine(program, words).run()


def value(program: bytes, words: Sequence[str] = ()) -> Any:
    """The last of them; None if there are none."""
    return next(reversed(values(program, words)), None)


def as_json(made: Any) -> bytes:
    """A value as JSON, with whatever halves of characters and infinities are in it."""
    try:
        return json.dumps(made).encode()
    except RecursionError:  # the end of json.dumps, which is not what is tested here
        return b"[" * 2_000 + b"]" * 2_000


def _weight(made: Any) -> int:
    """How many parts a value counts for: a long text, which may be named again and again, for several."""
    return 1 + (len(made) // 64 if isinstance(made, str) else 0)


def _key(made: Any) -> str:
    return made if isinstance(made, str) else json.dumps(made)[:40]


def _nth(made: Any, index: int) -> Any:
    match made:
        case bool():
            return made
        case int():
            return made * index
        case str():
            return f"{made}{index}"
    return made


def _nested(made: Any, depth: int) -> Any:
    for _ in range(min(depth, 900)):
        made = [made]
    return made
