"""Whose request it is: an owner for every key, and no answer without one."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from agent_tools.gateway.config import LOOPBACK
from agent_tools.gateway.failures import ApiError

ANYONE = "local"
"""The owner of everything on a gateway without keys."""


class Keys:
    """The keys that are accepted; only their digests are kept."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    @property
    def are_needed(self) -> bool:
        """Whether a request needs a key."""
        return bool(self._digests)

    def owner(self, headers: Mapping[str, str]) -> str:
        """Who asks.

        Raises:
            ApiError: 401, the key is missing or unknown; 403, a browser asks on behalf of a foreign page.
        """
        if not self._digests:
            _refuse_foreign_pages(headers)
            return ANYONE
        given = _digest(bearer(headers))
        found = [known for known in self._digests if hmac.compare_digest(known, given)]
        if not found:
            message = "Incorrect API key provided." if bearer(headers) else "You didn't provide an API key."
            raise ApiError(401, f"{message} Send it as 'Authorization: Bearer KEY'.", code="invalid_api_key")
        return found[0][:32]


def bearer(headers: Mapping[str, str]) -> str:
    """The key of a request, or ''."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def _refuse_foreign_pages(headers: Mapping[str, str]) -> None:
    """Without keys, only programs of this machine may ask: no web page, be it by name tricks or by cross-site posts."""
    host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    origin = headers.get("origin")
    if host not in LOOPBACK or (origin and origin not in (f"http://{headers.get('host')}", "null")):
        raise ApiError(403, "A gateway without keys answers this machine's own programs only.", code="foreign_origin")
    if origin == "null":
        raise ApiError(403, "A gateway without keys answers no pages of unknown origin.", code="foreign_origin")
