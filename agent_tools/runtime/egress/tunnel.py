"""A tunnel to a listed host: no byte of the code is sent before its TLS ClientHello names the requested host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agent_tools.engines.network import Target
from agent_tools.limits import KIB, EgressLimits
from agent_tools.machine.race import race
from agent_tools.runtime.egress.client_hello import NOT_TLS, UNRECOGNIZED_NAME, HelloReader, SecondHello, refused
from agent_tools.runtime.egress.dialling import Dialler
from agent_tools.runtime.egress.http_exchange import HttpExchange
from agent_tools.runtime.egress.link import ProxyChannel
from agent_tools.runtime.egress.meter import Meter
from agent_tools.runtime.egress.refusals import EgressRefused

MAX_HEAD = 16 * KIB  # bytes of the head of a request, and of a TLS greeting


CHUNK_BYTES = 64 * 1024

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
        reader, writer = await asyncio.open_connection(sock=await dialler.dial(target), limit=CHUNK_BYTES)
        try:
            first = await self._exchange.establish()
            sent = await self._greeted(first, writer, target)
            for ended in await race(self._outwards(writer, sent), self._inwards(reader)):
                ended.result()
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
        while data := await reader.read(CHUNK_BYTES):
            self._meter.receive(len(data))
            await self._channel.write(data)
