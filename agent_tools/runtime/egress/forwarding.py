"""Forward plain HTTP requests of user code, over TLS with added headers if the policy has some for the host.

    the code                             the host
    GET http://api.example.com/v1 ...    api.example.com:443, TLS verified here, with the headers of the policy
    GET http://example.org/ ...          example.org:80, if it is listed with this port

The head of the outgoing request is new: the method, the path and the end-to-end fields. A field that the policy sets
replaces the code's. Redirects and all other answers go to the code unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Union

import certifi
import h11

from agent_tools import settings
from agent_tools.engines.network import PACKAGE_HOSTS, PLAIN_PORT, TLS_PORT, NetworkPolicy, Target, read_target
from agent_tools.runtime.egress.dialling import Dialler
from agent_tools.runtime.egress.http_exchange import HttpExchange
from agent_tools.runtime.egress.link import ClientHungUp
from agent_tools.runtime.egress.meter import Meter
from agent_tools.runtime.egress.refusals import EgressRefused, NotReached

CHUNK_BYTES = 64 * 1024
MAX_ANSWER_HEAD = 64 * 1024
SCHEME = "http://"
Fields = list[tuple[bytes, bytes]]
Event = Union[h11.Response, h11.Data, h11.EndOfMessage]

_HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade", b"host", b"expect"),
    )
)
"""Hop-by-hop fields (RFC 9110, 7.6.1), and fields that are written anew."""
_REFUSED_METHODS = frozenset((b"TRACE", b"TRACK", b"CONNECT"))  # the first two make a server return the request


@dataclass(frozen=True)
class RequestTarget:
    """The destination of a request, and the fields added to it. `path` includes the query."""

    target: Target
    path: str
    is_tls: bool = False
    added: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, request: h11.Request, policy: NetworkPolicy) -> RequestTarget:
        """Read the destination of a request.

        Raises:
            EgressRefused: it names no host, or a host that is not listed for plain HTTP.
        """
        target, path = _read_url(request.target.decode("ascii"))
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in request.headers}:
            raise EgressRefused(400, "no HTTP", "A body has a length or comes in chunks, not both.")
        if request.method.upper() in _REFUSED_METHODS:
            raise EgressRefused(405, "method refused", "This method is not forwarded.")
        if target.port == PLAIN_PORT and target.host in policy.headers:
            added = tuple(policy.headers[target.host].items())
            return cls(Target(target.host, TLS_PORT), path, is_tls=True, added=added)
        if target.port == PLAIN_PORT and target.host in PACKAGE_HOSTS and policy.packages_cache:
            return cls(target, path)
        is_plain_index = policy.index is not None and policy.index.is_plain and target == policy.index.target
        if target.port != PLAIN_PORT and not target.is_address and not is_plain_index:
            raise EgressRefused(403, "not TLS", f"http:// is for port {PLAIN_PORT} here: ask https://{target}.")
        if not policy.permits(target) and policy.permits(Target(target.host, TLS_PORT)):
            raise EgressRefused(
                *(403, "not TLS"),
                f"{target.host} is on this sandbox's list for https:// only: ask that, or have the operator of "
                f"the sandbox allow '{target}'.",
            )
        return cls(target, path)

    @property
    def authority(self) -> str:
        """The Host field's value."""
        usual = TLS_PORT if self.is_tls else PLAIN_PORT
        return str(self.target).removesuffix(f":{usual}")


async def forward(
    exchange: HttpExchange, meter: Meter, dialler: Dialler, request: h11.Request, origin: RequestTarget
) -> None:
    """Send the request of an exchange to the origin, and forward its answer.

    Raises:
        EgressRefused: the request is not allowed, failed, or was cut.
    """
    sent = request_for(request, origin)
    async with contextlib.aclosing(asked(dialler, meter, origin, sent, exchange.body())) as events:
        async for event in events:
            await exchange.answer(event)


async def asked(
    dialler: Dialler,
    meter: Meter,
    origin: RequestTarget,
    request: h11.Request,
    body: AsyncIterator[bytes] | None = None,
) -> AsyncGenerator[Event, None]:
    """Send a request to its origin, and yield the parts of the answer.

    Raises:
        EgressRefused: the request is not allowed, failed, or was cut.
    """
    connected = await dialler.dial(origin.target)
    try:
        reader, writer = await _opened(connected, origin)
    except OSError as exc:
        connected.close()
        raise _broke_off(origin, exc) from exc
    try:
        upstream = _Upstream(reader, writer, meter)
        await upstream.ask(request, body)
        async for event in upstream.answer():
            yield event
    except ClientHungUp:
        raise
    except (OSError, h11.RemoteProtocolError, h11.LocalProtocolError) as exc:
        raise _broke_off(origin, exc) from exc
    finally:
        writer.transport.abort()


class _Upstream:
    """The host's side of one request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, meter: Meter) -> None:
        self._reader = reader
        self._writer = writer
        self._meter = meter
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_ANSWER_HEAD)

    async def ask(self, request: h11.Request, body: AsyncIterator[bytes] | None) -> None:
        """Send a request."""
        await self._send(request)
        if body is not None:
            async for data in body:
                await self._send(h11.Data(data=data))
        await self._send(h11.EndOfMessage())

    async def answer(self) -> AsyncIterator[Event]:
        """Yield the answer's parts, with the end-to-end fields of its head."""
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                data = await self._reader.read(CHUNK_BYTES)
                self._meter.receive(len(data))
                self._http.receive_data(data)
            elif isinstance(event, h11.Response):
                kept = _end_to_end(event.headers.raw_items())
                yield h11.Response(status_code=event.status_code, headers=kept, reason=event.reason)
            elif isinstance(event, h11.Data):
                yield h11.Data(data=bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                yield h11.EndOfMessage()
                return
            elif not isinstance(event, h11.InformationalResponse):
                raise ConnectionResetError("it ended within its answer")

    async def _send(self, event: h11.Event) -> None:
        data = self._http.send(event) or b""
        self._meter.send(len(data))
        self._writer.write(data)
        await self._writer.drain()


def _read_url(url: str) -> tuple[Target, str]:
    """Return the host, the port and the path of a URL in absolute form."""
    if url[: len(SCHEME)].lower() != SCHEME:
        raise EgressRefused(400, "no proxy request", "This is a proxy for http:// URLs, and for CONNECT.")
    rest = url[len(SCHEME) :]
    at = next((index for index, letter in enumerate(rest) if letter in "/?#"), len(rest))
    target = read_target(rest[:at], PLAIN_PORT)
    if target is None or "#" in rest:
        raise EgressRefused(400, "malformed URL", "This URL names no host and port.")
    path = rest[at:]
    return target, path if path.startswith("/") else f"/{path}"


def request_for(request: h11.Request, origin: RequestTarget) -> h11.Request:
    """Return the outgoing request for a request of the code."""
    ours = {name.encode("ascii") for name, _ in origin.added}
    kept = [pair for pair in _end_to_end(request.headers.raw_items()) if pair[0].lower() not in ours]
    added = [(name.encode("ascii"), value.encode("ascii")) for name, value in origin.added]
    host, close = [(b"Host", origin.authority.encode("ascii"))], [(b"Connection", b"close")]
    chunked = [pair for pair in request.headers.raw_items() if pair[0].lower() == b"transfer-encoding"]
    return h11.Request(
        method=request.method, target=origin.path, headers=[*host, *kept, *added, *close, *chunked], http_version=b"1.1"
    )


def _end_to_end(headers: Fields) -> Fields:
    """Return the end-to-end fields."""
    dropped = _HOP_BY_HOP.union(
        part.strip().lower() for name, value in headers if name.lower() == b"connection" for part in value.split(b",")
    )
    return [(name, value) for name, value in headers if name.lower() not in dropped]


async def _opened(connected: socket.socket, origin: RequestTarget) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Start TLS on a socket if the origin needs it."""
    if not origin.is_tls:
        return await asyncio.open_connection(sock=connected, limit=CHUNK_BYTES)
    context = _verifying(settings.ca_bundle())
    return await asyncio.open_connection(
        sock=connected, limit=CHUNK_BYTES, ssl=context, server_hostname=origin.target.host
    )


@functools.cache
def _verifying(bundle: Path | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(bundle or certifi.where()))


def _broke_off(origin: RequestTarget, exc: Exception) -> NotReached:
    if isinstance(exc, ssl.SSLCertVerificationError):
        return NotReached("its certificate is not trusted", f"The certificate of {origin.target.host} is not trusted.")
    return NotReached("it broke off", f"{origin.target.host} broke off, or did not answer in HTTP/1.1.")
