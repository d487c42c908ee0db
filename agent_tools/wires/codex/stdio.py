"""The protocol over stdin and stdout, one message a line, for `program` in Codex's environments.toml."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from agent_tools.engines.engine import GUEST_WORK_DIR
from agent_tools.limits import MIB
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.codex.connection import CodexWire, Connection, SessionContainer
from agent_tools.wires.paths import Home
from agent_tools.wires.routing import aside

MAX_MESSAGE = 64 * MIB
T = TypeVar("T")


class OneSandbox:
    """A sandbox in place of a gateway's containers."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    @contextmanager
    def use(self, id_: str, timeout: float = 0.0) -> Iterator[tuple[Sandbox, str]]:
        """Return the sandbox."""
        yield self._sandbox, ""

    @contextmanager
    def pin(self, id_: str, rank: int, begin: Callable[[Sandbox], T], timeout: float = 0.0) -> Iterator[T]:
        """Begin something in the sandbox."""
        yield begin(self._sandbox)


async def serve(sandbox: Sandbox, folder: str) -> None:
    """Serve one client, to the end of stdin or SIGTERM. `folder` is the host's name of the sandbox's folder."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    lines = asyncio.StreamReader(limit=MAX_MESSAGE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)

    async def write(message: str) -> None:
        with suppress(ConnectionError):  # the client has left, and stdin ends, too
            writer.write(f"{message}\n".encode())
            await writer.drain()

    wire = CodexWire(OneSandbox(sandbox))
    connection = Connection(wire, SessionContainer(("", ""), lambda: "", Home(GUEST_WORK_DIR, (folder,))), write)
    starting = asyncio.ensure_future(aside(sandbox.start))
    serving = asyncio.ensure_future(_served(lines, connection))
    stop = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait((serving, stop), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
    finally:
        for each in (serving, stop):
            each.cancel()
        await asyncio.gather(serving, stop, starting, return_exceptions=True)
        await connection.close()
        await wire.close()


async def _served(lines: asyncio.StreamReader, connection: Connection) -> None:
    while line := await lines.readline():
        if not await connection.handle(line):
            return
