"""Authentication: an owner for every key, and no answer without one."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from agent_tools.containers.keys import LOOPBACK, Keys
from agent_tools.containers.keys import bearer as key_in
from agent_tools.gateway.requests.failures import Refusal


class RequestKeys(Keys):
    """The keys that are accepted, as requests bring them."""

    def owner(self, headers: Mapping[str, str]) -> str:
        """Return the owner of a request.

        Raises:
            Refusal: 401, the key is missing or unknown; 403, a browser asks on behalf of a foreign page.
        """
        if not self.are_needed:
            self.refuse_strangers(headers)
        given = bearer(headers)
        owner = self.owner_of(given)
        if owner is None:
            message = "Incorrect API key provided." if given else "You didn't provide an API key."
            message = f"{message} Send it as 'Authorization: Bearer KEY'."
            raise Refusal("unknown_key", 401, message, "invalid_api_key")
        return owner

    def refuse_strangers(self, headers: Mapping[str, str], *, may_link: bool = False) -> None:
        """On a gateway without keys, refuse all but programs of this machine: web pages by DNS tricks or across sites.

        On a gateway with keys, routes without an owner are open to everyone, under any host name: load balancers use
        the address. `may_link` allows links on other sites' pages.

        Raises:
            Refusal: 403.
        """
        if self.are_needed:
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
    return key_in(headers.get("authorization", ""))


def _hostname(headers: Mapping[str, str]) -> str:
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:  # such as '['
        return ""


def _foreign(message: str) -> Refusal:
    return Refusal("foreign_origin", 403, message, "foreign_origin")
