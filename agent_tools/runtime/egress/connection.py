"""One connection of the code, from its first byte to its record."""

from __future__ import annotations

import asyncio

import h11

from agent_tools.runtime.egress.dialling import Dialler, check_listed
from agent_tools.runtime.egress.exchange import Exchange
from agent_tools.runtime.egress.forwarding import Forwarding, Origin
from agent_tools.runtime.egress.journal import Entry, Journal
from agent_tools.runtime.egress.link import Channel, HungUp
from agent_tools.runtime.egress.meter import Meter
from agent_tools.runtime.egress.packages import Packages
from agent_tools.runtime.egress.refusal import NotReached, Refused
from agent_tools.runtime.egress.tunnel import Tunnel, first_of
from agent_tools.runtime.network import PACKAGE_HOSTS, PLAIN_PORT, NetworkPolicy, Target, read_target

TOO_MANY = Refused(503, "too many connections", "This run has opened too many connections (max_opened).")
_CACHED = frozenset((host, PLAIN_PORT, False) for host in PACKAGE_HOSTS)


class Connection:
    """Serves one channel: a tunnel, or plain requests one after the other, each of which counts as a connection."""

    def __init__(
        self, channel: Channel, policy: NetworkPolicy, dialler: Dialler, journal: Journal, packages: Packages | None
    ) -> None:
        self._channel = channel
        self._policy = policy
        self._dialler = dialler
        self._journal = journal
        self._exchange = Exchange(channel, policy.limits.max_head)
        self._packages = packages
        self._is_first = True

    async def serve(self) -> None:
        """Serve it to its end, whatever comes."""
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
        except Refused as refusal:
            entry = entry or self._journal.begin()
            entry.refuse(refusal)
            await self._tell(refusal)
        except HungUp:
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
        except asyncio.TimeoutError:
            if not self._is_first:
                return None
            raise Refused(408, "no request in time", "The request did not come in time.") from None

    async def _carry(self, request: h11.Request, meter: Meter) -> None:
        if request.method == b"CONNECT":
            target = self._named(read_target(request.target.decode("ascii")), meter)
            check_listed(target, self._policy)
            await Tunnel(self._channel, self._exchange, meter, self._policy.limits).carry(self._dialler, target)
        else:
            origin = Origin.of(request, self._policy)
            self._named(origin.target, meter)
            if self._packages and (origin.target.host, origin.target.port, origin.is_tls) in _CACHED:
                await self._read_body()
                await self._packages.carry(self._exchange, meter, self._dialler, origin)
            else:
                await Forwarding(self._exchange, meter).carry(self._dialler, request, origin)

    async def _read_body(self) -> None:
        """Read a body that nobody wants, which is none as a rule."""
        async for _ in self._exchange.body():
            pass

    def _named(self, target: Target | None, meter: Meter) -> Target:
        """Note which target it is."""
        if target is None:
            raise Refused(400, "no host and port", "CONNECT names no host and port that could be reached.")
        meter.entry.host, meter.entry.port = target.host, target.port
        return target

    async def _tell(self, refusal: Refused) -> None:
        """Answer with the refusal, unless the code does not take it."""
        try:
            await asyncio.wait_for(self._exchange.refuse(refusal), self._policy.limits.head_timeout)
        except (OSError, asyncio.TimeoutError):
            return
