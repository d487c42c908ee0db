"""The egress allowlist of one sandbox: starts, serves and records its connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import TimeoutError as TooLate
from pathlib import Path

import certifi
import h11

from agent_tools import settings
from agent_tools.engines.network import PACKAGE_HOSTS, PLAIN_PORT, NetworkPolicy, Target, read_target
from agent_tools.errors import KernelDied
from agent_tools.guest.wire.sockets import await_hang_up
from agent_tools.limits import KIB, EgressLimits
from agent_tools.machine.event_loop import join, leave
from agent_tools.machine.fork_hook import abandon_after_fork
from agent_tools.results.connections import NetworkConnection
from agent_tools.runtime.egress.client_hello import NOT_TLS, UNRECOGNIZED_NAME, HelloReader, SecondHello, refused
from agent_tools.runtime.egress.dialling import Dialler, Surroundings, check_listed
from agent_tools.runtime.egress.forwarding import Forwarding, HttpExchange, RequestTarget
from agent_tools.runtime.egress.journal import Entry, Journal
from agent_tools.runtime.egress.link import ClientHungUp, Link, ProxyChannel
from agent_tools.runtime.egress.meter import Meter
from agent_tools.runtime.egress.packages import Packages
from agent_tools.runtime.egress.refusals import EgressRefused, NotReached

# One connection of user code, from its first byte to its record.

MAX_HEAD = 16 * KIB  # bytes of the head of a request, and of a TLS greeting
TOO_MANY = EgressRefused(503, "too many connections", "This run has opened too many connections (max_opened).")
_CACHED = frozenset((host, PLAIN_PORT, False) for host in PACKAGE_HOSTS)


class ProxiedConnection:
    """Serves one channel: a tunnel, or consecutive plain requests, each of which counts as a connection."""

    def __init__(
        self,
        channel: ProxyChannel,
        policy: NetworkPolicy,
        dialler: Dialler,
        journal: Journal,
        packages: Packages | None,
    ) -> None:
        self._channel = channel
        self._policy = policy
        self._dialler = dialler
        self._journal = journal
        self._exchange = HttpExchange(channel, MAX_HEAD)
        self._packages = packages
        self._is_first = True

    async def serve(self) -> None:
        """Serve the channel to its end, for any input."""
        try:
            while await self._serve_request():
                self._is_first = False
        finally:
            self._channel.close()

    async def _serve_request(self) -> bool:
        """Serve one request and record it; return whether another may follow."""
        entry: Entry | None = None
        try:
            request = await self._request()
            if request is None:
                return False
            if self._journal.opened >= self._policy.limits.max_opened:
                self._journal.count_unread()
                await self._tell(TOO_MANY)
                return False
            entry = self._journal.begin()
            meter = Meter(entry, self._policy.limits)
            await first_of(self._carry(request, meter), meter.watch())
            return self._exchange.begin_again()
        except EgressRefused as refusal:
            entry = entry or self._journal.begin()
            entry.refuse(refusal)
            await self._tell(refusal)
        except ClientHungUp:
            return False
        except OSError as exc:
            if entry:
                entry.refuse(NotReached("it broke off", str(exc)))
        finally:
            if entry:
                self._journal.end(entry)
        return False

    async def _request(self) -> h11.Request | None:
        try:
            return await asyncio.wait_for(self._exchange.request(), self._policy.limits.head_timeout)
        except TimeoutError:
            if not self._is_first:
                return None
            raise EgressRefused(408, "no request in time", "The request did not come in time.") from None

    async def _carry(self, request: h11.Request, meter: Meter) -> None:
        if request.method == b"CONNECT":
            target = self._named(read_target(request.target.decode("ascii")), meter)
            check_listed(target, self._policy)
            await Tunnel(self._channel, self._exchange, meter, self._policy.limits).carry(self._dialler, target)
        else:
            origin = RequestTarget.of(request, self._policy)
            self._named(origin.target, meter)
            if self._packages and (origin.target.host, origin.target.port, origin.is_tls) in _CACHED:
                await self._read_body()
                await self._packages.carry(self._exchange, meter, self._dialler, origin)
            else:
                await Forwarding(self._exchange, meter).carry(self._dialler, request, origin)

    async def _read_body(self) -> None:
        """Read and drop a request's body, which is usually empty."""
        async for _ in self._exchange.body():
            pass

    def _named(self, target: Target | None, meter: Meter) -> Target:
        """Record the target."""
        if target is None:
            raise EgressRefused(400, "no host and port", "CONNECT does not name a valid host and port.")
        meter.entry.host, meter.entry.port = target.host, target.port
        return target

    async def _tell(self, refusal: EgressRefused) -> None:
        """Answer with the error, if the code reads it."""
        try:
            await asyncio.wait_for(self._exchange.refuse(refusal), self._policy.limits.head_timeout)
        except (TimeoutError, OSError):
            return


# A tunnel to a listed host: no byte of the code is sent before its TLS ClientHello names the requested host.


CHUNK = 64 * 1024

Sent = Callable[[bytes], bytes]
"""A filter: takes bytes from the code and returns the bytes that may be sent now."""


class Tunnel:
    """The tunnel of one CONNECT request."""

    def __init__(self, channel: ProxyChannel, exchange: HttpExchange, meter: Meter, limits: EgressLimits) -> None:
        self._channel = channel
        self._exchange = exchange
        self._meter = meter
        self._limits = limits

    async def carry(self, dialler: Dialler, target: Target) -> None:
        """Connect, and copy bytes both ways until one side ends.

        Raises:
            EgressRefused: the connection is not allowed, failed, or was cut.
        """
        reader, writer = await asyncio.open_connection(sock=await dialler.dial(target), limit=CHUNK)
        try:
            first = await self._exchange.establish()
            sent = await self._greeted(first, writer, target)
            await first_of(self._outwards(writer, sent), self._inwards(reader))
        except EgressRefused as refusal:
            if refusal.status == NOT_TLS:
                await self._channel.write(UNRECOGNIZED_NAME)
            raise
        finally:
            writer.transport.abort()

    async def _greeted(self, first: bytes, writer: asyncio.StreamWriter, target: Target) -> Sent:
        """Send the checked ClientHello; return the filter for the bytes after it."""
        if target.is_address:
            await self._send(writer, first)
            return lambda data: data
        reader = await self._read_greeting(first, target)
        second = SecondHello(target.host, MAX_HEAD)
        rest = second.feed(bytes(reader.data[reader.end :]))
        await self._send(writer, bytes(reader.data[: reader.end]) + rest)
        return second.feed

    async def _read_greeting(self, first: bytes, target: Target) -> HelloReader:
        """Read the code's ClientHello, which must name the target."""
        try:
            return await asyncio.wait_for(self._read_whole(first, target), self._limits.head_timeout)
        except TimeoutError:
            raise refused("its TLS greeting does not come") from None

    async def _read_whole(self, first: bytes, target: Target) -> HelloReader:
        reader = HelloReader(MAX_HEAD)
        name = reader.feed(first)
        while name is None:
            data = await self._channel.read()
            if not data:
                raise refused("it ended before its TLS greeting")
            name = reader.feed(data)
        if name != target.host:
            raise refused("its TLS greeting names another server")
        return reader

    async def _outwards(self, writer: asyncio.StreamWriter, sent: Sent) -> None:
        while data := await self._channel.read():
            await self._send(writer, sent(data))

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        self._meter.send(len(data))
        writer.write(data)
        await writer.drain()

    async def _inwards(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK):
            self._meter.receive(len(data))
            await self._channel.write(data)


async def first_of(*works: Awaitable[None]) -> None:
    """Run coroutines until the first ends; cancel the others and wait for them."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


log = logging.getLogger("agent_tools.egress")
MAX_RECORDED = 1_000  # connections that an execution records one by one; more are only counted
READY = b"\1"
BUSY = (
    b"HTTP/1.1 503 Too many connections\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"The sandbox has too many connections at once.\n"
)
CLOSE_SECONDS = 2.0  # seconds to wait for the end of a sandbox's network


class Egress:
    """Serves the connections of one sandbox, for one kernel after the other."""

    def __init__(self, policy: NetworkPolicy, surroundings: Surroundings | None = None) -> None:
        self._policy = policy
        self._journal = Journal(MAX_RECORDED)
        self._loop = join(self)
        self._dialler = Dialler(policy, self._loop, surroundings or Surroundings())
        self._packages = Packages(policy.packages_cache, policy, self._loop) if policy.packages_cache else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._link: Link | None = None
        self._end: socket.socket | None = None
        self._is_closed = False
        abandon_after_fork(self)

    def serve(self, end: socket.socket, deadline: float) -> None:
        """Serve a fresh proxy of the guest on this socket, which is closed with it.

        Raises:
            KernelDied: the proxy was not ready before the deadline (monotonic seconds).
        """
        try:
            _greet(end, deadline)
            asyncio.run_coroutine_threadsafe(self._begin(end), self._loop.loop).result(
                max(0.1, deadline - time.monotonic())
            )
        except (OSError, TooLate) as exc:
            end.close()
            raise KernelDied("its network did not come up") from exc

    @property
    def is_serving(self) -> bool:
        """True while the socket of the guest's proxy is open: the loop sees its end a moment later."""
        has_end = self._end is not None and self._end.fileno() >= 0 and not await_hang_up(self._end.fileno(), 0)
        return has_end and self._link is not None and self._link.is_open

    @property
    def is_busy(self) -> bool:
        """True while the code has connections."""
        return bool(self._tasks)

    def take_connections(self) -> tuple[tuple[NetworkConnection, ...], int]:
        """Return the connections since the last call, and how many were left out."""
        return self._journal.take_connections()

    def close(self) -> None:
        """End every connection."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(OSError, TooLate):
            asyncio.run_coroutine_threadsafe(self._end_all(), self._loop.loop).result(CLOSE_SECONDS)
        leave(self._loop, self)

    def abandon(self) -> None:
        """Close, in a forked child, the parent's socket."""
        self._is_closed = True
        if self._end:
            self._end.close()

    async def _begin(self, end: socket.socket) -> None:
        """Serve a socket in place of the previous one."""
        await self._end_all()
        end.setblocking(False)
        link = Link(self._take_on)
        await self._loop.loop.connect_accepted_socket(lambda: link, end)
        self._end, self._link = end, link

    def _take_on(self, channel: ProxyChannel) -> None:
        """Serve a new channel, or close it if there are too many."""
        limits = self._policy.limits
        if self._journal.opened >= limits.max_opened or len(self._tasks) >= limits.max_connections:
            self._journal.count_unread()
            channel.say(BUSY)
            channel.close()
            return
        task = self._loop.loop.create_task(
            ProxiedConnection(channel, self._policy, self._dialler, self._journal, self._packages).serve()
        )
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()):
            log.error("a connection of a sandbox failed", exc_info=failure)

    async def _end_all(self) -> None:
        if self._link:
            self._link.close()
            self._link = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _greet(end: socket.socket, deadline: float) -> None:
    """Send the certificates that this host trusts, and wait until the guest's proxy is ready."""
    bundle = (settings.ca_bundle() or Path(certifi.where())).read_bytes()
    end.settimeout(max(0.1, deadline - time.monotonic()))
    end.sendall(struct.pack(">I", len(bundle)) + bundle)
    if end.recv(len(READY)) != READY:
        raise ConnectionResetError("the guest's proxy ended")
