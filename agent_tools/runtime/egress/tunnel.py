"""A tunnel to a listed host: nothing of the code's goes out before its TLS greeting names the host it asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from agent_tools.limits import EgressLimits
from agent_tools.runtime.egress.client_hello import NOT_TLS, UNRECOGNIZED_NAME, HelloReader, SecondHello, refused
from agent_tools.runtime.egress.dialling import Dialler
from agent_tools.runtime.egress.exchange import Exchange
from agent_tools.runtime.egress.link import Channel
from agent_tools.runtime.egress.meter import Meter
from agent_tools.runtime.egress.refusal import Refused
from agent_tools.runtime.network import Target

CHUNK = 64 * 1024

Sent = Callable[[bytes], bytes]
"""A filter: takes what the code sent, and returns what of it may go out now."""


class Tunnel:
    """Carries what one CONNECT asked for."""

    def __init__(self, channel: Channel, exchange: Exchange, meter: Meter, limits: EgressLimits) -> None:
        self._channel = channel
        self._exchange = exchange
        self._meter = meter
        self._limits = limits

    async def carry(self, dialler: Dialler, target: Target) -> None:
        """Connect, and carry bytes both ways until one side ends.

        Raises:
            Refused: it may not be, could not be, or was cut.
        """
        reader, writer = await asyncio.open_connection(sock=await dialler.dial(target), limit=CHUNK)
        try:
            first = await self._exchange.establish()
            sent = await self._greeted(first, writer, target)
            await first_of(self._outwards(writer, sent), self._inwards(reader))
        except Refused as refusal:
            if refusal.status == NOT_TLS:
                await self._channel.write(UNRECOGNIZED_NAME)
            raise
        finally:
            writer.transport.abort()

    async def _greeted(self, first: bytes, writer: asyncio.StreamWriter, target: Target) -> Sent:
        """Send the checked greeting; return what checks that which follows."""
        if target.is_address:
            await self._send(writer, first)
            return lambda data: data
        reader = await self._read_greeting(first, target)
        second = SecondHello(target.host, self._limits.max_head)
        rest = second.feed(bytes(reader.data[reader.end :]))
        await self._send(writer, bytes(reader.data[: reader.end]) + rest)
        return second.feed

    async def _read_greeting(self, first: bytes, target: Target) -> HelloReader:
        """Read the code's greeting, which names the target."""
        try:
            return await asyncio.wait_for(self._read_whole(first, target), self._limits.head_timeout)
        except asyncio.TimeoutError:
            raise refused("its TLS greeting does not come") from None

    async def _read_whole(self, first: bytes, target: Target) -> HelloReader:
        reader = HelloReader(self._limits.max_head)
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
    """Do all of these until the first ends; the others are cancelled, and waited for."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
