"""Authentication: an owner for every key, and no answer without one."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from agent_tools.gateway.config import LOOPBACK
from agent_tools.gateway.requests.failures import Refusal

ANYONE = "local"  # the owner of everything on a gateway without keys


class Keys:
    """The keys that are accepted; only their digests are kept."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    @property
    def are_needed(self) -> bool:
        """A request needs a key."""
        return bool(self._digests)

    def owner(self, headers: Mapping[str, str]) -> str:
        """Return the owner of a request.

        Raises:
            Refusal: 401, the key is missing or unknown; 403, a browser asks on behalf of a foreign page.
        """
        if not self._digests:
            self.refuse_strangers(headers)
            return ANYONE
        given = _digest(bearer(headers))
        found = [known for known in self._digests if hmac.compare_digest(known, given)]
        if not found:
            message = "Incorrect API key provided." if bearer(headers) else "You didn't provide an API key."
            message = f"{message} Send it as 'Authorization: Bearer KEY'."
            raise Refusal("unknown_key", 401, message, "invalid_api_key")
        return found[0][:32]

    def refuse_strangers(self, headers: Mapping[str, str], *, may_link: bool = False) -> None:
        """On a gateway without keys, refuse all but programs of this machine: web pages by DNS tricks or across sites.

        On a gateway with keys, routes without an owner are open to everyone, under any host name: load balancers use
        the address. `may_link` allows links on other sites' pages.

        Raises:
            Refusal: 403.
        """
        if self._digests:
            return
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        is_link = may_link and headers.get("sec-fetch-mode") == "navigate"
        if _hostname(headers) not in LOOPBACK or (origin and origin not in (f"http://{headers.get('host')}", "null")):
            raise _foreign("A gateway without keys answers only programs on this machine.")
        if origin == "null":
            raise _foreign("A gateway without keys does not answer pages of unknown origin.")
        if site not in ("none", "same-origin") and not is_link:
            raise _foreign("A gateway without keys does not answer pages of other sites.")


def bearer(headers: Mapping[str, str]) -> str:
    """Return the key of a request, or ''."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def _hostname(headers: Mapping[str, str]) -> str:
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:  # such as '['
        return ""


def _foreign(message: str) -> Refusal:
    return Refusal("foreign_origin", 403, message, "foreign_origin")
