"""Fetches one URL under limits of size, time and redirects, and only from public addresses.

Every hop's host name is resolved here and the connection goes to the address that was checked, so that a name cannot
answer differently the second time. Proxy settings are not used: a proxy would resolve names again.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

import certifi
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from agent_tools.errors import FileRejected
from agent_tools.limits import Limits
from agent_tools.machine.addresses import addresses_of, ascii_name, checked_addresses, is_public
from agent_tools.machine.background import begin
from agent_tools.settings import ca_bundle

CHUNK_BYTES = 256 * 1024
MAX_REDIRECTS = 5
LookUp = Callable[[str, int], list[str]]
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True)
class Download:
    """An open response: its suggested file name, and its content in pieces."""

    name: str
    chunks: Iterator[bytes]


def open_url(url: str, limits: Limits, allow_private: bool = False) -> Download:
    """Start fetching a URL.

    Raises:
        FileRejected: it may not be fetched, does not answer with 200, or takes too long, also while the chunks are
        read. Messages name the host and never the path, the query or credentials.
    """
    deadline = time.monotonic() + limits.download_timeout
    parts = _checked(url)
    for _ in range(MAX_REDIRECTS + 1):
        answer = _request(parts, _public_address(parts, allow_private, deadline), deadline)
        response = answer.response
        if response.status not in _REDIRECTS:
            if response.status != 200:
                answer.close()
                raise FileRejected(f"{parts.hostname} answered with status {response.status}")
            return Download(_name_of(response, parts), _read(answer, parts, limits, deadline))
        answer.close()
        parts = _checked(response.headers.get("location", ""), parts.geturl())
    raise FileRejected(f"more than {MAX_REDIRECTS} redirects")


def _checked(url: str, base: str = "") -> SplitResult:
    try:
        parts = urlsplit(urljoin(base, url))
        port = parts.port
    except ValueError as exc:
        raise FileRejected("the URL is malformed") from exc
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise FileRejected("only http and https URLs with a host are fetched")
    if parts.username or parts.password:
        raise FileRejected("URLs with credentials are not fetched")
    if parts.hostname.isascii():
        return parts
    host = ascii_name(parts.hostname)
    if not host.isascii():
        raise FileRejected("the URL's host is not a valid name")
    return parts._replace(netloc=host if port is None else f"{host}:{port}")


def _public_address(parts: SplitResult, allow_private: bool, deadline: float, look_up: LookUp = addresses_of) -> str:
    """Return an address of the host; all its addresses must be public. The resolver has time limits of its own."""
    host, port = parts.hostname or "", parts.port or _default_port(parts)
    may_be = (lambda _: True) if allow_private else is_public
    found = begin(lambda: checked_addresses(host, port, may_be, look_up), "agent-tools-lookup")
    try:
        return found.result(deadline - time.monotonic())[0]
    except FutureTimeout:
        raise FileRejected(f"{host} took too long") from None
    except LookupError:
        raise FileRejected(f"{host} has no address") from None
    except PermissionError:
        refused = f"{host} is a private or reserved address, which is refused (allow_private_urls)"
        raise FileRejected(refused) from None


def _default_port(parts: SplitResult) -> int:
    return 443 if parts.scheme == "https" else 80


@dataclass(frozen=True)
class _Answer:
    """A response, and the resources to release with it."""

    response: urllib3.BaseHTTPResponse
    connection: HTTPConnection
    hang_up: threading.Timer

    def close(self) -> None:
        self.hang_up.cancel()
        self.response.close()
        self.connection.close()


def _request(parts: SplitResult, address: str, deadline: float) -> _Answer:
    """Request a URL. A socket's timeout covers one read, and a server may send slowly; the timer covers all reads."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise FileRejected(f"{parts.hostname} took too long")
    connection = _connection(parts, address, min(10.0, left))
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Host": parts.netloc, "User-Agent": "agent-tools", "Accept-Encoding": "identity"}
    try:
        connection.connect()
        hang_up = _hang_up_at(deadline, connection.sock)
        try:
            connection.request("GET", _encoded(target), headers=headers, preload_content=False)
            return _Answer(connection.getresponse(), connection, hang_up)
        except BaseException:
            hang_up.cancel()
            raise
    except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError) as exc:
        connection.close()
        raise FileRejected(f"{parts.hostname} cannot be reached ({type(exc).__name__})") from exc


def _encoded(target: str) -> str:
    """Return a path and query with percent escapes for characters that HTTP does not allow."""
    return urllib3.util.parse_url(f"http://host{target}").request_uri


def _connection(parts: SplitResult, address: str, timeout: float) -> HTTPConnection:
    port = parts.port or _default_port(parts)
    if parts.scheme == "http":
        return HTTPConnection(address, port, timeout=timeout)
    bundle = str(ca_bundle() or certifi.where())
    name = parts.hostname
    return HTTPSConnection(address, port, timeout=timeout, server_hostname=name, assert_hostname=name, ca_certs=bundle)


def _hang_up_at(deadline: float, sock: socket.socket) -> threading.Timer:
    """Close the socket at the deadline, which ends pending reads."""

    def hang_up() -> None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, deadline - time.monotonic()), hang_up)
    timer.daemon = True
    timer.start()
    return timer


def _read(answer: _Answer, parts: SplitResult, limits: Limits, deadline: float) -> Iterator[bytes]:
    try:
        while True:
            chunk = answer.response.read(CHUNK_BYTES)
            if time.monotonic() > deadline:
                raise FileRejected(f"{parts.hostname} took longer than {limits.download_timeout:g} s")
            if not chunk:
                return
            yield chunk
    except (urllib3.exceptions.HTTPError, OSError) as exc:
        raise FileRejected(f"{parts.hostname} broke off ({type(exc).__name__})") from exc
    finally:
        answer.close()


def _name_of(response: urllib3.BaseHTTPResponse, parts: SplitResult) -> str:
    """Return the file name from the server, else the last part of the path, else the host."""
    disposition = response.headers.get("content-disposition", "")
    match = re.search(r"filename\*=(?:UTF-8'[^']*')?([^;]+)", disposition, re.IGNORECASE) or re.search(
        r'filename="?([^";]+)', disposition, re.IGNORECASE
    )
    name = unquote(match[1]).strip() if match else unquote(os.path.basename(parts.path))
    return name or parts.hostname or "download"
