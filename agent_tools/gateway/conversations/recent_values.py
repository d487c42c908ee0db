"""The newest values of all owners within a number of bytes, in which no owner makes others lose theirs."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class RecentValues(Generic[K, V]):
    """Values by owner and key, together at most `most` bytes: the oldest of the owner with most bytes goes first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._sizes: Counter[str] = Counter()
        self._total = 0  # of `_sizes`, which many owners may have
        self._known: dict[str, OrderedDict[K, tuple[V, int]]] = {}

    def add(self, owner: str, key: K, value: V, size: int) -> None:
        """Remember a value as the newest of its owner."""
        self.drop(owner, key)
        self._known.setdefault(owner, OrderedDict())[key] = value, size
        self._sizes[owner] += size
        self._total += size
        while self._total > self._most:
            largest, _ = self._sizes.most_common(1)[0]
            self.drop(largest, next(iter(self._known[largest])))

    def get(self, owner: str, key: K) -> V | None:
        """Return a value, if it is still known."""
        found = self._of(owner).get(key)
        return found[0] if found else None

    def keys(self, owner: str) -> list[K]:
        """Return the keys of an owner, the oldest first."""
        return list(self._of(owner))

    def drop_oldest(self, is_old: Callable[[V], bool]) -> None:
        """Forget the oldest values of each owner, up to the first that is not old."""
        for owner, known in list(self._known.items()):
            while known:
                key, (value, _) = next(iter(known.items()))
                if not is_old(value):
                    break
                self.drop(owner, key)

    def drop(self, owner: str, key: K) -> None:
        """Forget a value; an unknown one is not an error."""
        if found := self._of(owner).pop(key, None):
            self._sizes[owner] -= found[1]
            self._total -= found[1]
            if not self._known[owner]:
                del self._known[owner], self._sizes[owner]

    def _of(self, owner: str) -> OrderedDict[K, tuple[V, int]]:
        return self._known.get(owner) or OrderedDict()
