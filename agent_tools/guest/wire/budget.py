"""The cost that decoding one message may have: parts, bytes made of them, and keys of one hash. Standard library only.

A message is small beside what it may stand for: a name of four bytes can stand for a text of megabytes, a few hundred
bytes for millions of nulls, and integers of one hash make a set take the square of its size in time.
"""

import sys
from collections.abc import Callable
from typing import Any

MAX_PARTS = 100_000  # values in a message, whatever they are in
MADE_PER_BYTE = 16  # bytes of values that each byte of a message may become
FREE_BYTES = 8 * 1024 * 1024  # and so many more: a column of nulls takes none in a message
MAX_MADE_BYTES = 96 * 1024 * 1024
MAX_SAME_HASH = 100  # elements of a set, or keys: powers of two reach 67
LOOK_EVERY = 256  # lists and dicts, or parts of one, between two looks whether anybody still waits
INSERTED_AT_ONCE = 1_000  # elements of a set, or keys: between them other threads have their turn


class TooCostly(ValueError):
    """A message stands for more than it may."""


class GivenUp(Exception):
    """Nobody waits for the value any more."""


class Budget:
    """Of one message of so many bytes. `is_over` tells whether to give up, and is asked every so often.

    Attributes:
        limit: bytes that may be made.
        made: bytes made so far.
    """

    def __init__(self, size: int, is_over: Callable[[], bool] | None = None) -> None:
        self.limit = min(MADE_PER_BYTE * size + FREE_BYTES, MAX_MADE_BYTES)
        self.made = 0
        self._is_over = is_over
        self._parts = self._counts = 0
        self._names: set[int] = set()

    def parts(self, count: int) -> None:
        """Count the values in a list or a dict.

        Raises:
            TooCostly: they are too many.
            GivenUp: nobody waits for them.
        """
        self._parts += count
        self._counts += 1
        if count > LOOK_EVERY or self._counts % LOOK_EVERY == 0:
            self.look_up()
        if self._parts > MAX_PARTS:
            raise TooCostly(f"more than {MAX_PARTS:,} parts; an array, a frame or a text counts as one")

    def look_up(self) -> None:
        """Go on, if somebody still waits.

        Raises:
            GivenUp: nobody does.
        """
        if self._is_over is not None and self._is_over():
            raise GivenUp("the call is over")

    def make(self, size: int) -> None:
        """Count bytes before they are made.

        Raises:
            TooCostly: they are too many.
        """
        self.made += size
        if self.made > self.limit:
            raise TooCostly(f"it would take more than {self.limit:,} bytes")

    def name(self, index: int) -> None:
        """Count an attachment, which may be named once.

        Raises:
            TooCostly: it was named before.
        """
        if index in self._names:
            raise TooCostly("an attachment that is named twice")
        self._names.add(index)


class Unbounded(Budget):
    """Of a message that is trusted."""

    def __init__(self) -> None:
        super().__init__(0)
        self.limit = sys.maxsize

    def parts(self, count: int) -> None:
        """Count nothing."""


def set_of(items: list[Any]) -> set[Any]:
    """A set of these.

    Raises:
        TooCostly: too many have one hash.
        TypeError: one of them has none.
    """
    check_hashes(items)
    found: set[Any] = set()
    for start in range(0, len(items), INSERTED_AT_ONCE):
        found.update(items[start : start + INSERTED_AT_ONCE])
    return found


def dict_of(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """A dict of these.

    Raises:
        TooCostly: too many keys have one hash.
        TypeError: one of them has none.
    """
    check_hashes([key for key, _ in pairs])
    found: dict[Any, Any] = {}
    for start in range(0, len(pairs), INSERTED_AT_ONCE):
        found.update(pairs[start : start + INSERTED_AT_ONCE])
    return found


def check_hashes(items: list[Any]) -> None:
    """Look for many different elements of one hash. Sorted, not counted in a dict, which they would slow down as well.

    Raises:
        TooCostly: there are.
        TypeError: an element has no hash.
    """
    hashes = [hash(item) for item in items]
    ordered = sorted(hashes)
    pairs = zip(ordered, ordered[MAX_SAME_HASH:])
    crowds: dict[int, set[Any]] = {first: set() for first, last in pairs if first == last}
    if not crowds:
        return
    for item, its_hash in zip(items, hashes):
        crowd = crowds.get(its_hash)
        if crowd is not None:
            crowd.add(item)
            if len(crowd) > MAX_SAME_HASH:
                raise TooCostly(f"more than {MAX_SAME_HASH} elements or keys of one hash")
