"""The egress allowlist of one sandbox: starts, serves and records its connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from concurrent.futures import TimeoutError as TooLate
from pathlib import Path

import certifi

from agent_tools import settings
from agent_tools.engines.network import NetworkPolicy
from agent_tools.errors import KernelDied
from agent_tools.guest.wire.framing import pack
from agent_tools.guest.wire.mux import WORDS
from agent_tools.guest.wire.sockets import await_hang_up
from agent_tools.machine.event_loop import join, leave
from agent_tools.machine.fork_hook import abandon_after_fork
from agent_tools.results.connections import NetworkConnection
from agent_tools.runtime.egress.dialling import Dialler, Surroundings
from agent_tools.runtime.egress.journal import Journal
from agent_tools.runtime.egress.link import Link, ProxyChannel
from agent_tools.runtime.egress.packages import Packages
from agent_tools.runtime.egress.proxied_connection import ProxiedConnection

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
        try:
            self._packages = Packages(policy.packages_cache, policy, self._loop) if policy.packages_cache else None
        except BaseException:  # no folder for the cache
            leave(self._loop, self)
            raise
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

    def count_anew(self) -> None:
        """Count the opened connections from here on, for the limit of one run."""
        self._journal.opened = 0

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
    end.sendall(pack(WORDS, bundle))
    if end.recv(len(READY)) != READY:
        raise ConnectionResetError("the guest's proxy ended")
