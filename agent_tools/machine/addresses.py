"""Addresses: which of them are on the public internet; and the one spelling of a host name."""

from __future__ import annotations

import ipaddress

import idna

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")  # all of IPv6 that is given out
# Blocks that some Python takes for global, although the registries of special purposes say that they are not, or that
# no server stands there: https://www.iana.org/assignments/iana-ipv4-special-registry/ and iana-ipv6-special-registry/.
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


def is_public(address: str) -> bool:
    """Return whether an address is on the public internet, looking through the ways IPv6 wraps an IPv4 address."""
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
    """Return a host name as it is looked up: IDNA 2008 with UTS 46's mapping, as browsers, curl and requests have it.

    Python's own codec is IDNA 2003, by which `straße.de` is `strasse.de`, the name of another owner. What has no such
    form, and what is ASCII, is returned as it is.
    """
    try:
        return host if host.isascii() else idna.encode(host, uts46=True).decode("ascii")
    except UnicodeError:
        return host
