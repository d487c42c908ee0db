"""Limits the cost of decoding one message: parts, bytes made of them, and keys of one hash. Standard library only.

A message is small beside what it may stand for: a name of four bytes can stand for a text of megabytes, a few hundred
bytes for millions of nulls, and integers of one hash make a set take the square of its size in time.
"""

import sys
from collections.abc import Callable
from typing import Any

MAX_PARTS = 100_000  # values in a message, at any depth
MADE_PER_BYTE = 16  # bytes of values that each byte of a message may become
FREE_BYTES = 8 * 1024 * 1024  # in addition: a column of nulls takes no bytes in a message
MAX_MADE_BYTES = 96 * 1024 * 1024
MAX_SAME_HASH = 100  # elements of a set, or keys: powers of two reach 67
CHECK_PARTS = 256  # lists and dicts, or parts of one, between two looks whether anybody still waits
INSERTED_AT_ONCE = 1_000  # elements of a set, or keys: between them other threads have their turn


class TooCostly(ValueError):
    """Decoding a message would cost more than its budget."""


class GivenUp(Exception):
    """The decoded value is not needed any more."""


class Budget:
    """The budget of one message. `is_over` returns whether to stop; it is called regularly.

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
            GivenUp: they are not needed any more.
        """
        self._parts += count
        self._counts += 1
        if count > CHECK_PARTS or self._counts % CHECK_PARTS == 0:
            self.look_up()
        if self._parts > MAX_PARTS:
            raise TooCostly(f"more than {MAX_PARTS:,} parts; an array, a frame or a text counts as one")

    def look_up(self) -> None:
        """Check that the value is still needed.

        Raises:
            GivenUp: it is not.
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
    """The budget of a trusted message, without limits."""

    def __init__(self) -> None:
        super().__init__(0)
        self.limit = sys.maxsize

    def parts(self, count: int) -> None:
        """Count nothing."""


def set_of(items: list[Any]) -> set[Any]:
    """Return a set of these values. Raises: TooCostly: too many have one hash. TypeError: one of them has none."""
    check_hashes(items)
    found: set[Any] = set()
    for start in range(0, len(items), INSERTED_AT_ONCE):
        found.update(items[start : start + INSERTED_AT_ONCE])
    return found


def dict_of(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a dict of these pairs. Raises: TooCostly: too many keys have one hash. TypeError: one of them has none."""
    check_hashes([key for key, _ in pairs])
    found: dict[Any, Any] = {}
    for start in range(0, len(pairs), INSERTED_AT_ONCE):
        found.update(pairs[start : start + INSERTED_AT_ONCE])
    return found


def check_hashes(items: list[Any]) -> None:
    """Check for many different elements of one hash. Hashes are sorted, since a dict would be slow, too.

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
