"""Connect to a listed host: its addresses are looked up once and checked, and one of these is connected to.

If this machine reaches hosts through a proxy (settings.next_hop), the proxy looks the name up again. A name that can be
resolved here must still pass the check; for a name that only the proxy can resolve, the proxy decides.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote, urlsplit

from agent_tools import settings
from agent_tools.engines.network import NetworkPolicy, Target
from agent_tools.machine.addresses import addresses_of, ascii_name, checked_addresses
from agent_tools.machine.event_loop import EventLoop
from agent_tools.runtime.egress.refusals import EgressRefused, NotReached

CONNECT_SECONDS = 15.0  # seconds for the lookup of a name and the connection
LOOKUP_THREADS = 8  # names that are looked up at the same time, of all sandboxes
LOOKUPS_AT_ONCE = 2  # lookups of one sandbox at the same time, since all sandboxes share the threads
MAX_ADDRESSES = 8  # addresses of one name that are tried
MAX_PROXY_HEAD = 8 * 1024  # bytes of a proxy's answer


@dataclass(frozen=True)
class Surroundings:
    """Access to this machine's resolver, which may block, and to its proxy settings."""

    look_up: Callable[[str, int], list[str]] = addresses_of
    next_hop: Callable[[str, int], str | None] = settings.next_hop


@dataclass(frozen=True)
class Hop:
    """A proxy of this machine. `credentials` is a header's value, or ''."""

    host: str
    port: int
    credentials: str = ""

    @classmethod
    def read(cls, url: str) -> Hop:
        """Parse a proxy's URL.

        Raises:
            NotReached: it is not an http:// URL.
        """
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port or 80
        except ValueError:
            parts, port = urlsplit(""), 0
        if parts.scheme != "http" or not parts.hostname:
            raise NotReached("the host's proxy is unusable", "The host's own proxy is not one with an http:// URL.")
        user = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        credentials = "Basic " + base64.b64encode(user.encode()).decode() if parts.username else ""
        return cls(ascii_name(parts.hostname), port, credentials)


class Dialler:
    """Connects to the hosts of one policy. Call it only in the loop."""

    def __init__(self, policy: NetworkPolicy, loop: EventLoop, surroundings: Surroundings) -> None:
        self._policy = policy
        self._loop = loop
        self._surroundings = surroundings
        self._lookups = asyncio.Semaphore(LOOKUPS_AT_ONCE)

    async def dial(self, target: Target) -> socket.socket:
        """Return a connected, non-blocking socket.

        Raises:
            EgressRefused: the target is not listed, or its address is not allowed.
            NotReached: it does not answer.
        """
        check_listed(target, self._policy)
        try:
            return await asyncio.wait_for(self._dial(target), CONNECT_SECONDS)
        except TimeoutError:
            raise NotReached("no answer in time", f"{target} does not answer.") from None

    async def _dial(self, target: Target) -> socket.socket:
        url = self._surroundings.next_hop(target.host, target.port)
        if url is None:
            return await self._connect(target, await self._addresses(target))
        hop = Hop.read(url)
        with contextlib.suppress(NotReached):  # the proxy may resolve a name that this machine cannot
            await self._addresses(target)
        connected = await self._connect(target, await self._look_up(hop.host, hop.port), hop.port)
        return await _closing(connected, self._ask_hop(connected, hop, target))

    async def _addresses(self, target: Target) -> list[str]:
        """Return the addresses of a listed target; all of them must be allowed."""
        if target.is_address:
            return [target.host]
        return await self._look_up(target.host, target.port, lambda each: self._policy.may_lie_at(each, target))

    async def _look_up(self, host: str, port: int, may_be: Callable[[str], bool] = lambda _: True) -> list[str]:
        try:
            async with self._lookups:
                work = partial(checked_addresses, host, port, may_be, self._surroundings.look_up)
                return await self._loop.beside("agent-tools-lookup", LOOKUP_THREADS, work)
        except LookupError:
            raise NotReached("no address", f"The host finds no address for {host}.") from None
        except PermissionError:
            raise EgressRefused(
                *(403, "a private or reserved address"),
                f"{host} has a private or reserved address, which is not allowed: the operator of this sandbox "
                "can allow it with network={'private': ['<block of addresses>']}.",
            ) from None

    async def _connect(self, target: Target, addresses: list[str], port: int = 0) -> socket.socket:
        """Connect to the first of these addresses that answers."""
        for address in addresses[:MAX_ADDRESSES]:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with contextlib.suppress(OSError):
                connected = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return await _closing(connected, self._reach(connected, (address, port or target.port)))
        raise NotReached("no connection", f"{target} refuses connections, or cannot be reached from the host.")

    async def _reach(self, connected: socket.socket, address: tuple[str, int]) -> None:
        await self._loop.loop.sock_connect(connected, address)

    async def _ask_hop(self, connected: socket.socket, hop: Hop, target: Target) -> None:
        """Ask the proxy to connect to the target."""
        loop, authorization = self._loop.loop, f"Proxy-Authorization: {hop.credentials}\r\n" if hop.credentials else ""
        try:
            head = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{authorization}\r\n"
            await loop.sock_sendall(connected, head.encode("ascii"))
            answer = b""
            while b"\r\n\r\n" not in answer and len(answer) < MAX_PROXY_HEAD:
                more = await loop.sock_recv(connected, MAX_PROXY_HEAD - len(answer))
                if not more:
                    break
                answer += more
        except OSError as exc:
            raise NotReached("the host's proxy broke off", "The host's own proxy broke off.") from exc
        status, _, fields = answer.partition(b"\r\n")
        if not status.startswith(b"HTTP/1.") or status.split()[1:2] != [b"200"] or not fields.endswith(b"\r\n"):
            raise NotReached("the host's proxy refuses", f"The host's own proxy does not connect to {target}.")


def check_listed(target: Target, policy: NetworkPolicy) -> None:
    """Check that a target is listed.

    Raises:
        EgressRefused: it is not.
    """
    if not policy.permits(target):
        entry = target.host if target.port == 443 and ":" not in target.host else str(target)
        raise EgressRefused(
            *(403, "not listed"),
            f"{target} is not on this sandbox's list: its operator can allow it with network={{'allow': ['{entry}']}}.",
        )


async def _closing(connected: socket.socket, work: Awaitable[None]) -> socket.socket:
    """Close a socket if the block fails."""
    with contextlib.ExitStack() as undo:
        undo.callback(connected.close)
        await work
        undo.pop_all()
    return connected
