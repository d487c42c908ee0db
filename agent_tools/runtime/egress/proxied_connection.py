"""One connection of user code, from its first byte to its record."""

from __future__ import annotations

import asyncio

import h11

from agent_tools.engines.network import PACKAGE_HOSTS, PLAIN_PORT, NetworkPolicy, Target, read_target
from agent_tools.machine.race import race
from agent_tools.runtime.egress.dialling import Dialler, check_listed
from agent_tools.runtime.egress.forwarding import RequestTarget, forward
from agent_tools.runtime.egress.http_exchange import HttpExchange
from agent_tools.runtime.egress.journal import Journal, JournalEntry
from agent_tools.runtime.egress.link import ClientHungUp, ProxyChannel
from agent_tools.runtime.egress.meter import Meter
from agent_tools.runtime.egress.packages import Packages
from agent_tools.runtime.egress.refusals import EgressRefused, NotReached
from agent_tools.runtime.egress.tunnel import MAX_HEAD, Tunnel

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
        entry: JournalEntry | None = None
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
            for ended in await race(self._carry(request, meter), meter.watch()):
                ended.result()
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
                await forward(self._exchange, meter, self._dialler, request, origin)

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
