"""API keys: each key is an owner of containers. Without keys, all clients of a loopback address are one owner."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

from agent_tools.errors import InvalidParams

ANYONE = "local"  # the owner of everything if there are no keys
LOOPBACK = ("127.0.0.1", "::1", "localhost")
MIN_KEY_CHARS = 8
_LOOPBACK_HOST = re.compile(r"(127\.0\.0\.1|\[::1\]|localhost)(:\d{1,5})?", re.IGNORECASE)


def first_of_most(owners: Sequence[str]) -> int:
    """Return the index of the first thing of the owner that has most of them: it makes room for another."""
    return owners.index(Counter(owners).most_common(1)[0][0])


class Keys:
    """The keys that are accepted; only their digests are kept."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [digest(key) for key in keys]

    @property
    def are_needed(self) -> bool:
        """True if a request needs a key."""
        return bool(self._digests)

    def owner_of(self, key: str) -> str | None:
        """Return the owner of a key; None if the key is not known."""
        if not self._digests:
            return ANYONE
        given = digest(key)
        found = [known for known in self._digests if hmac.compare_digest(known, given)]
        return owner_of_digest(found[0]) if found else None


def check_keys(keys: Sequence[str], host: str, *, with_others: bool = False, advice: str = "give --api-key") -> None:
    """Check keys for a server on this address; `with_others` is true if it needs a key even without these.

    Raises:
        InvalidParams: there is no key and other machines reach the address; or a key is too short.
    """
    if not keys and not with_others and host not in LOOPBACK:
        raise InvalidParams(f"Without a key, anyone who reaches {host or 'this machine'} could run code: {advice}.")
    for place, key in enumerate(keys, 1):
        if len(key) < MIN_KEY_CHARS:
            raise InvalidParams(f"API key {place} of {len(keys)} has fewer than {MIN_KEY_CHARS} characters.")


def web_page_refusal(headers: Mapping[str, str], *, may_link: bool = False) -> str | None:
    """Return why a server without keys refuses a request: a web page sent it, by DNS tricks or across sites.

    Return None for a request of a program on this machine. `may_link` allows links on other sites' pages.
    """
    host, origin, site = headers.get("host", ""), headers.get("origin"), headers.get("sec-fetch-site", "none")
    is_link = may_link and headers.get("sec-fetch-mode") == "navigate"
    if not _LOOPBACK_HOST.fullmatch(host):
        return "Without keys, only requests to this machine's own name are answered: localhost or 127.0.0.1."
    if origin and origin != f"http://{host}":
        return "Without keys, no page of another origin is answered."
    if site not in ("none", "same-origin") and not is_link:
        return "Without keys, no page of another site is answered."
    return None


class _WithoutQuery(logging.Filter):
    """Cuts the query off the path in uvicorn's access log: some clients put their key there."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Cut the query from the record, whose arguments are address, method, path, version and status."""
        if isinstance(record.args, tuple) and len(record.args) == 5:
            address, method, path, *rest = record.args
            record.args = (address, method, str(path).partition("?")[0], *rest)
        return True


_WITHOUT_QUERY = _WithoutQuery()


def log_no_queries() -> None:
    """Keep the queries of requests out of uvicorn's access log."""
    logging.getLogger("uvicorn.access").addFilter(_WITHOUT_QUERY)


def bearer(authorization: str) -> str:
    """Return the key in an Authorization header, or ''. With the scheme Basic it is the password.

    Clients that are configured only by a URL send it for http://key:KEY@HOST.
    """
    scheme, _, key = authorization.partition(" ")
    if scheme.lower() == "basic":
        with suppress(ValueError):
            return base64.b64decode(key.strip(), validate=True).decode().partition(":")[2]
    return key.strip() if scheme.lower() == "bearer" else ""


def owner_of_digest(known: str) -> str:
    """Return the owner for the digest of a key."""
    return known[:32]


def digest(key: str) -> str:
    """Return the digest of a key; the key itself is not stored."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()
