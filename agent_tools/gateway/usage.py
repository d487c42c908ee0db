"""Usage: what each user of each key has used, by day, in the table `usage` and its view `usage_by_month`.

Runs are counted where the audit log writes their ends, with the same numbers. What a gateway counts is in memory until
the next `flush`, so one that is killed loses what it has not written yet.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

from agent_tools.containers.keys import digest
from agent_tools.containers.records import NAMED, ContainerRecord
from agent_tools.gateway.requests.auth import RequestKeys
from agent_tools.gateway.store.records import UsageRow
from agent_tools.gateway.store.store import Store
from agent_tools.models.base import Usage
from agent_tools.sandbox.audit import RunEnd
from agent_tools.text import utc_text

FLUSH_EVERY = 2.0  # seconds
KEPT_SECONDS = 400 * 86_400.0  # for which rows are kept: a year, and the time to bill it
AMOUNTS = ("runs", "milliseconds", "bytes_in", "bytes_out", "input_tokens", "output_tokens")
_USER = re.compile(rf"{NAMED}[0-9a-f]{{14}}")
_Place = tuple[str, str, str, str]  # day, owner, key, user


class UsageMeter:
    """Counts usage. `clock` tells the time. Thread-safe."""

    def __init__(self, store: Store, keys: RequestKeys, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._lock = threading.Lock()
        self._flushing = threading.Lock()  # so that all is written when `flush` returns
        self._new: dict[_Place, Counter[str]] = {}

    def ran(self, container: ContainerRecord, names: Mapping[str, str], run: RunEnd) -> None:
        """Count a run in a container, whose owner has these names; its origin stands for the user of a server."""
        user = container.origin if _USER.fullmatch(container.origin) else ""
        self._count(self._place(container.owner, names["key"], names["user"] or user), _amounts(run))

    def asked(self, owner: str, usage: Usage) -> None:
        """Count the tokens of one answer of a model."""
        amounts = Counter(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
        self._count(self._place(owner, self._keys.name_of(owner), self._keys.user_of(owner)), amounts)

    def flush(self) -> None:
        """Write what is new. What cannot be written stays for the next time."""
        with self._flushing:
            with self._lock:
                new, self._new = self._new, {}
            try:
                while new:
                    place = next(iter(new))
                    self._store.increase(_row(place, new[place], self._clock()), *AMOUNTS)
                    del new[place]
            finally:
                for place, amounts in new.items():
                    self._count(place, amounts)

    def _place(self, owner: str, key: str, user: str) -> _Place:
        return utc_text(self._clock())[:10], owner, key, user

    def _count(self, place: _Place, amounts: Counter[str]) -> None:
        with self._lock:
            self._new.setdefault(place, Counter()).update(amounts)


def _amounts(run: RunEnd) -> Counter[str]:
    return Counter(runs=1, milliseconds=run.milliseconds, bytes_in=run.bytes_in, bytes_out=run.bytes_out)


def _row(place: _Place, amounts: Counter[str], now: float) -> UsageRow:
    day, owner, key, user = place
    numbers = {name: amounts[name] for name in AMOUNTS}
    id_ = digest(repr(place))[:32]
    return UsageRow(id=id_, created_at=now, day=day, owner=owner, key_name=key, user_name=user, **numbers)
