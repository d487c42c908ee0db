"""Authentication: an owner for every key, and no answer without one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from agent_tools.containers.keys import ANYONE, digest, owner_of_digest, web_page_refusal
from agent_tools.containers.keys import bearer as key_in
from agent_tools.gateway.requests.failures import ApiError, Refusal, busy

_PLACES = ("api-key", "x-api-key", "x-access-token", "e2b-traffic-access-token")  # headers of other services


@dataclass(frozen=True)
class AcceptedKey:
    """A key that is accepted.

    Attributes:
        owner: the owner of everything that its requests create.
        name: its name for an operator; a key of the setting is `setting-1`, `setting-2`, ...
        max_containers: the limit of containers; None for the gateway's own.
        max_requests_per_minute: likewise.
        for_users: a client with the key may name the user of each request, as a server of many users does.
    """

    owner: str
    name: str
    max_containers: int | None = None
    max_requests_per_minute: int | None = None
    for_users: bool = False


class RequestKeys:
    """The accepted keys. Named keys are added and revoked while the gateway runs."""

    def __init__(
        self,
        keys: Sequence[str],
        *,
        with_named: bool = False,
        patience: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._with_named = with_named
        self._patience = patience
        self._clock = clock
        self._named_at = clock()
        self._set = {
            digest(key): AcceptedKey(owner_of_digest(digest(key)), f"setting-{number}")
            for number, key in enumerate(keys, start=1)
        }
        self._callers: Mapping[str, AcceptedKey] = self._set
        self._owners = frozenset(caller.owner for caller in self._set.values())

    @property
    def are_needed(self) -> bool:
        """A request needs a key."""
        return self._with_named or bool(self._set)

    @property
    def has_users(self) -> bool:
        """A key's holder may name users."""
        return any(caller.for_users for caller in self._callers.values())

    def accept_named(self, callers: Mapping[str, AcceptedKey], revoked: Collection[str] = ()) -> frozenset[str]:
        """Accept these keys, by digest, beside those of the setting that are not revoked.

        All that were named before are forgotten. Return the owners that had a key until now.
        """
        before = self._owners
        left = {digest: caller for digest, caller in self._set.items() if digest not in revoked}
        self._callers = {**left, **callers}
        self._owners = frozenset(caller.owner for caller in self._callers.values())
        self._named_at = self._clock()
        return before - self._owners

    def has(self, owner: str) -> bool:
        """Return whether an owner has a key still, or none is needed."""
        return owner in self._owners or not self.are_needed

    def max_containers(self, owner: str, usual: int) -> int:
        """Return the number of containers that an owner may have at once."""
        found = [each.max_containers for each in self._callers.values() if each.owner == owner]
        return next((most for most in found if most is not None), usual)

    def name_of(self, owner: str) -> str:
        """Return the name of an owner's key; `ANYONE` if it is not accepted any more."""
        return next((each.name for each in self._callers.values() if each.owner == owner), ANYONE)

    def caller(self, headers: Mapping[str, str]) -> AcceptedKey:
        """Return the key of a request.

        Raises:
            Refusal: 401, the key is missing or unknown; 403, a browser asks on behalf of a foreign page.
            ApiError: 503, the store has not answered for too long, so the key may have been revoked.
        """
        if not self.are_needed:
            self.refuse_strangers(headers)
            return AcceptedKey(ANYONE, ANYONE)
        given = key_of(headers)
        found = self._callers.get(
            digest(given)
        )  # no client can choose a digest, so the time of the look-up reveals nothing
        if found is None:
            message = "Incorrect API key provided." if given else "You didn't provide an API key."
            message = f"{message} Send it as 'Authorization: Bearer KEY'."
            raise Refusal("unknown_key", 401, message, "invalid_api_key")
        if digest(given) not in self._set and self._clock() > self._named_at + self._patience:
            raise ApiError(
                503, "The gateway's database does not answer, so keys cannot be checked.", code="database_unavailable"
            )
        return found

    def refuse_strangers(self, headers: Mapping[str, str], *, may_link: bool = False) -> None:
        """On a gateway without keys, refuse web pages: see `web_page_refusal`.

        On a gateway with keys, routes without an owner are open to everyone, under any host name: load balancers use
        the address.
        """
        if not self.are_needed and (message := web_page_refusal(headers, may_link=may_link)):
            raise Refusal("foreign_origin", 403, message, "foreign_origin")


def key_of(headers: Mapping[str, str]) -> str:
    """Return the key of a request, or ''. Azure's clients send it as `api-key`, Anthropic's as `x-api-key`.

    E2B's send it to a sandbox as its token, beside an Authorization that names a user without a password.
    """
    if found := key_in(headers.get("authorization", "")):
        return found
    return next((headers[name].strip() for name in _PLACES if name in headers), "")


# Requests in a minute, for each key: a token bucket of the size of its limit, which refills within a minute.


MINUTE = 60.0


class Rates:
    """The buckets. `usual` is the limit of keys without one of their own, 0 for none. For one event loop."""

    def __init__(self, usual: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._usual = usual
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}  # by owner: what was left, and when

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
        left, since = self._buckets.get(caller.owner, (float(limit), now))
        left = min(limit, left + (now - since) * limit / MINUTE)
        if left < 1:
            self._buckets[caller.owner] = (left, now)
            message = f"This key may send {limit:,} requests in a minute; try again later."
            raise busy(429, message, (1 - left) * MINUTE / limit)
        self._buckets[caller.owner] = (left - 1, now)
