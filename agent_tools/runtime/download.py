"""Fetches one URL under limits of size, time and redirects, and only from public addresses.

Every hop's host name is resolved here and the connection goes to the address that was checked, so that a name cannot
answer differently the second time. Proxy settings are not used: a proxy would resolve names out of our sight.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

import certifi
import urllib3

from agent_tools.errors import FileRejected
from agent_tools.settings import Limits, ca_bundle

CHUNK = 256 * 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True)
class Download:
    """An open response: the name it suggests, and its content in pieces."""

    name: str
    chunks: Iterator[bytes]


def is_url(source: str) -> bool:
    """Whether a source is fetched over HTTP."""
    return source.lower().startswith(("http://", "https://"))


def open_url(url: str, limits: Limits, allow_private: bool = False) -> Download:
    """Start fetching a URL.

    Raises:
        FileRejected: it may not be fetched, does not answer with 200, or takes too long; also while reading the chunks.
            Messages name the host and never the path, the query or credentials.
    """
    deadline = time.monotonic() + limits.download_timeout
    for _ in range(limits.max_redirects + 1):
        parts = _checked(url)
        response = _request(parts, _public_address(parts, allow_private), deadline)
        if response.status not in _REDIRECTS:
            if response.status != 200:
                response.close()
                raise FileRejected(f"{parts.hostname} answered with status {response.status}")
            return Download(_name_of(response, parts), _read(response, parts, limits, deadline))
        url = urljoin(url, response.headers.get("location", ""))
        response.close()
    raise FileRejected(f"more than {limits.max_redirects} redirects")


def _checked(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (raises for a bad port)
    except ValueError as exc:
        raise FileRejected("the URL is malformed") from exc
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise FileRejected("only http and https URLs with a host are fetched")
    if parts.username or parts.password:
        raise FileRejected("URLs with credentials are not fetched")
    return parts


def _public_address(parts: SplitResult, allow_private: bool) -> str:
    """An address of the host, all of whose addresses must be public."""
    host = parts.hostname or ""
    try:
        found = socket.getaddrinfo(host, parts.port or _default_port(parts), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        raise FileRejected(f"{host} has no address") from exc
    addresses = [str(entry[4][0]) for entry in found]
    if not allow_private:
        for address in addresses:
            if not is_public(address):
                raise FileRejected(f"{host} is a private or reserved address, which is refused (allow_private_urls)")
    return addresses[0]


def is_public(address: str) -> bool:
    """Whether an address is on the public internet, looking through the ways IPv6 wraps an IPv4 address."""
    ip = ipaddress.ip_address(address.split("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        wrapped = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in _NAT64:
            wrapped = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if wrapped is not None:
            return is_public(str(wrapped))
    return ip.is_global and not ip.is_multicast


def _default_port(parts: SplitResult) -> int:
    return 443 if parts.scheme == "https" else 80


def _request(parts: SplitResult, address: str, deadline: float) -> urllib3.BaseHTTPResponse:
    left = deadline - time.monotonic()
    if left <= 0:
        raise FileRejected(f"{parts.hostname} took too long")
    timeout = urllib3.Timeout(connect=min(10.0, left), read=min(10.0, left))
    port = parts.port or _default_port(parts)
    pool: urllib3.HTTPConnectionPool
    if parts.scheme == "https":
        bundle = str(ca_bundle() or certifi.where())
        pool = urllib3.HTTPSConnectionPool(
            address,
            port,
            server_hostname=parts.hostname,
            assert_hostname=parts.hostname,
            ca_certs=bundle,
            timeout=timeout,
        )
    else:
        pool = urllib3.HTTPConnectionPool(address, port, timeout=timeout)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Host": parts.netloc, "User-Agent": "agent-tools", "Accept-Encoding": "identity"}
    try:
        return pool.urlopen("GET", target, headers=headers, redirect=False, retries=False, preload_content=False)
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as exc:
        raise FileRejected(f"{parts.hostname} cannot be fetched from ({type(exc).__name__})") from exc


def _read(response: urllib3.BaseHTTPResponse, parts: SplitResult, limits: Limits, deadline: float) -> Iterator[bytes]:
    try:
        while chunk := response.read(CHUNK):
            if time.monotonic() > deadline:
                raise FileRejected(f"{parts.hostname} took longer than {limits.download_timeout:g} s")
            yield chunk
    except (urllib3.exceptions.HTTPError, OSError) as exc:
        raise FileRejected(f"{parts.hostname} broke off ({type(exc).__name__})") from exc
    finally:
        response.close()


def _name_of(response: urllib3.BaseHTTPResponse, parts: SplitResult) -> str:
    """The file name the server gives, else the last part of the path, else the host."""
    disposition = response.headers.get("content-disposition", "")
    match = re.search(r"filename\*=(?:UTF-8'')?([^;]+)", disposition, re.IGNORECASE) or re.search(
        r'filename="?([^";]+)', disposition, re.IGNORECASE
    )
    name = unquote(match[1]).strip() if match else unquote(os.path.basename(parts.path))
    return name or parts.hostname or "download"
