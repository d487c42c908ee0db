"""Network addresses: resolves names, and tells whether an address is on the public internet."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable

import idna

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")  # all allocated IPv6 addresses
# Blocks that some versions of Python treat as global, although the registries say that they are special or unused:
# https://www.iana.org/assignments/iana-ipv4-special-registry/ and iana-ipv6-special-registry/.
_SPECIAL = tuple(
    ipaddress.ip_network(block)
    for block in (
        "192.0.0.0/24",  # protocol assignments
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays, deprecated
        "192.175.48.0/24",  # AS112
        "2001::/23",  # protocol assignments; Teredo is looked through
        "2001:db8::/32",  # documentation
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)


def addresses_of(host: str, port: int) -> list[str]:
    """Return the addresses of a name, in the system's order, each once.

    Raises:
        OSError: it has none.
        UnicodeError: the name is malformed.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def checked_addresses(
    host: str, port: int, may_be: Callable[[str], bool], look_up: Callable[[str, int], list[str]] = addresses_of
) -> list[str]:
    """Look a name up and return its addresses. Connect to one of these: a second lookup might answer differently.

    Raises:
        LookupError: it has none.
        PermissionError: one of them is not allowed by `may_be`.
    """
    try:
        found = look_up(host, port)
    except (OSError, UnicodeError):
        found = []
    if not found:
        raise LookupError(host)
    if not all(map(may_be, found)):
        raise PermissionError(host)
    return found


def is_public(address: str) -> bool:
    """Return whether an address is on the public internet. IPv4 addresses embedded in IPv6 ones are checked, too."""
    ip = ipaddress.ip_address(address.split("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        wrapped = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in _NAT64:
            wrapped = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if wrapped is not None:
            return is_public(str(wrapped))
        if ip not in _GLOBAL_UNICAST:
            return False
    return ip.is_global and not ip.is_multicast and not any(ip in block for block in _SPECIAL)


def ascii_name(host: str) -> str:
    """Return a host name in the form for lookups: IDNA 2008 with UTS 46's mapping, as in browsers, curl and requests.

    Python's own codec is IDNA 2003, by which `straße.de` is `strasse.de`, the name of another owner. ASCII names, and
    names without such a form, are returned unchanged.
    """
    try:
        return host if host.isascii() else idna.encode(host, uts46=True).decode("ascii")
    except UnicodeError:
        return host
