"""Requests in a minute, for each key: a token bucket of the size of its limit, which refills within a minute."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from agent_tools.gateway.requests.api_errors import busy
from agent_tools.gateway.requests.auth import AcceptedKey

MINUTE = 60.0


class Rates:
    """The buckets. `usual` is the limit of keys without one of their own, 0 for none. For one event loop."""

    def __init__(self, usual: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._usual = usual
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # by owner: what was left, and when

    def check(self, caller: AcceptedKey) -> None:
        """Count a request.

        Raises:
            ApiError: 429, it is one too many; the client may ask again when the next one fits.
        """
        own = caller.max_requests_per_minute
        limit = self._usual if own is None else own
        if not limit:
            return
        now = self._clock()
        self._forget_full(now)
        left, since = self._buckets.pop(caller.owner, (float(limit), now))
        left = min(limit, left + (now - since) * limit / MINUTE)
        if left < 1:
            self._buckets[caller.owner] = (left, now)
            message = f"This key may send {limit:,} requests in a minute; try again later."
            raise busy(429, message, (1 - left) * MINUTE / limit)
        self._buckets[caller.owner] = (left - 1, now)

    def _forget_full(self, now: float) -> None:
        """Forget owners without a request in the last minute: their buckets are full."""
        while self._buckets and next(iter(self._buckets.values()))[1] <= now - MINUTE:
            self._buckets.popitem(last=False)
