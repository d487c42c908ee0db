"""Authentication: an owner for every key, and no answer without one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from agent_tools.bodies.sign_on import ProviderUnavailable, SignedOnUser, SignOn, TokenRefused, is_token
from agent_tools.containers.keys import ANYONE, digest, owner_of_digest, web_page_refusal
from agent_tools.containers.keys import bearer as key_in
from agent_tools.engines.volumes import Volume, chosen
from agent_tools.gateway.requests.api_errors import ApiError, Refusal

_PLACES = ("api-key", "x-api-key", "x-access-token", "e2b-traffic-access-token")  # headers of other services

SIGN_ON = "sign-on"  # the name of users, where groups do not matter
MAX_USERS = 20_000  # that are remembered, the latest ones: work of others ends


@dataclass(frozen=True)
class AcceptedKey:
    """A key that is accepted, or the token of a user, whose group has the name and the limits.

    Attributes:
        owner: the owner of everything that its requests create.
        name: its name for an operator; a key of the setting is `setting-1`, `setting-2`, ...
        max_containers: the limit of containers; None for the gateway's own.
        max_requests_per_minute: likewise.
        for_users: a client with the key may name the user of each request, as a server of many users does.
        operator: its holder may see and stop what others run, and limit and revoke their keys.
        user: the subject of a token; '' for a key.
        expires_at: when the token ends (seconds since the epoch).
        volumes: the names of volumes that its containers may use; None for all of the gateway's.
    """

    owner: str
    name: str
    max_containers: int | None = None
    max_requests_per_minute: int | None = None
    for_users: bool = False
    user: str = ""
    expires_at: float = math.inf
    volumes: tuple[str, ...] | None = None
    operator: bool = False


class RequestKeys:
    """The accepted keys, and the users of an identity provider. Named keys and groups change while the gateway runs.

    `sign_on` reads users' tokens; `with_groups` lets in only those who are in a named group.
    """

    def __init__(
        self,
        keys: Sequence[str],
        *,
        with_named: bool = False,
        max_age: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        sign_on: SignOn | None = None,
        with_groups: bool = False,
    ) -> None:
        self.sign_on = sign_on
        self._groups: Mapping[str, AcceptedKey] = {}  # by the text in the claim, in the order of their creation
        self._with_groups = with_groups
        self._users: dict[str, SignedOnUser] = {}  # by owner, the latest last
        self._with_named = with_named
        self._max_age = max_age
        self._clock = clock
        self._named_at = clock()
        self._set = {
            digest(key): AcceptedKey(owner_of_digest(digest(key)), f"setting-{number}")
            for number, key in enumerate(keys, start=1)
        }
        self._callers: Mapping[str, AcceptedKey] = self._set
        self._by_owner = {caller.owner: caller for caller in self._set.values()}

    @property
    def are_needed(self) -> bool:
        """A request needs a key."""
        return self._with_named or bool(self._set or self.sign_on)

    @property
    def has_users(self) -> bool:
        """A key's holder may name users."""
        return any(caller.for_users for caller in self._callers.values())

    def accept_named(
        self,
        callers: Mapping[str, AcceptedKey],
        revoked: Collection[str] = (),
        groups: Mapping[str, AcceptedKey] = MappingProxyType({}),
    ) -> frozenset[str]:
        """Accept these keys, by digest, beside those of the setting that are not revoked, and users of these groups.

        All that were named before are forgotten. Return the owners that had a key or a group until now.
        """
        self._groups = groups
        left_out = {owner for owner, user in dict(self._users).items() if not self._caller_of(user)}
        for owner in left_out:
            self._users.pop(owner, None)  # another token may let the user in again
        before = self._by_owner.keys()
        left = {digest: caller for digest, caller in self._set.items() if digest not in revoked}
        self._callers = {**left, **callers}
        self._by_owner = {caller.owner: caller for caller in self._callers.values()}
        self._named_at = self._clock()
        return frozenset(left_out.union(before - self._by_owner.keys()))

    def has(self, owner: str) -> bool:
        """Return whether an owner has a key still, or is a user who may use the gateway, or none is needed."""
        return not self.are_needed or self._of(owner) is not None

    def max_containers(self, owner: str, usual: int) -> int:
        """Return the number of containers that an owner may have at once."""
        found = self._of(owner)
        return usual if found is None or found.max_containers is None else found.max_containers

    def volume_names(self) -> Mapping[str, tuple[str, ...] | None]:
        """Return the names of volumes that each owner with a key, and each user, may use; None for all."""
        users = filter(None, map(self._caller_of, list(self._users.values())))
        return {each.owner: each.volumes for each in (*self._callers.values(), *users)}

    def volumes(self, owner: str, known: tuple[Volume, ...]) -> tuple[Volume, ...]:
        """Return which of the known volumes an owner may use: none without an accepted key."""
        found = self._of(owner)
        if found is None:
            return () if self.are_needed else known
        return known if found.volumes is None else chosen(known, found.volumes)

    def name_of(self, owner: str) -> str:
        """Return the name of an owner's key or group; `ANYONE` if it is not accepted any more."""
        found = self._of(owner)
        return found.name if found else ANYONE

    def user_of(self, owner: str) -> str:
        """Return the subject of the user that an owner is, '' for the owner of a key."""
        found = self._of(owner)
        return found.user if found else ""

    async def prepare(self, given: str) -> None:
        """Have what `caller` needs for this key or token: the identity provider may be asked."""
        if self.sign_on and is_token(given) and digest(given) not in self._callers:
            await self.sign_on.prepare(given)

    def caller(self, headers: Mapping[str, str], door: str = "") -> AcceptedKey:
        """Return the key of a request, or the user of its token, which may be for the part at the path `door` only.

        Raises:
            Refusal: 401, the key or token is missing or not accepted; 403, the user is in no named group, or a browser
                asks on behalf of a foreign page.
            ApiError: 503, the store or the identity provider does not answer, so it may have been revoked.
        """
        if not self.are_needed:
            self.refuse_strangers(headers)
            return AcceptedKey(ANYONE, ANYONE, operator=True)
        key = key_of(headers)
        accepted = self._callers.get(
            digest(key)
        )  # no client can choose a digest, so the time of the look-up reveals nothing
        if accepted is None and self.sign_on and is_token(key):
            accepted = self._signed_on(self.sign_on, key, door)
        if accepted is None:
            message = "Incorrect API key provided." if key else "You didn't provide an API key."
            message = f"{message} Send it as 'Authorization: Bearer KEY'."
            raise Refusal("unknown_key", 401, message, "invalid_api_key")
        is_named = self._with_groups if accepted.user else digest(key) not in self._set
        if is_named and self._clock() > self._named_at + self._max_age:
            raise ApiError(
                503, "The gateway's database does not answer, so keys cannot be checked.", code="database_unavailable"
            )
        return accepted

    def _signed_on(self, sign_on: SignOn, token: str, door: str) -> AcceptedKey:
        """Return the user of a token. Errors as for `caller`."""
        try:
            user = sign_on.user(token, door)
        except TokenRefused as exc:
            raise Refusal("unknown_key", 401, str(exc), "invalid_token") from exc
        except ProviderUnavailable as exc:
            raise ApiError(503, str(exc), code="identity_provider_unavailable", headers={"Retry-After": "10"}) from exc
        caller = self._caller_of(user)
        if caller is None:
            message = "You are in no group that may use this gateway: ask its operator."
            raise Refusal("unknown_key", 403, message, "access_denied")
        self._users.pop(user.owner, None)
        self._users[user.owner] = user
        while len(self._users) > MAX_USERS:
            del self._users[next(iter(self._users))]
        return caller

    def _caller_of(self, user: SignedOnUser) -> AcceptedKey | None:
        """Return what a user may, by the first of the named groups that has the user; None: nothing."""
        group = AcceptedKey("", SIGN_ON)
        if self._with_groups:
            found = next((each for claim, each in self._groups.items() if claim in user.groups), None)
            if found is None:
                return None
            group = found
        return replace(group, owner=user.owner, user=user.subject, expires_at=user.expires_at)

    def _of(self, owner: str) -> AcceptedKey | None:
        """Return the key of an owner, or the user."""
        user = self._users.get(owner)
        return (self._caller_of(user) if user else None) or self._by_owner.get(owner)

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
