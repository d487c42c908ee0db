"""The protocol over stdin and stdout, one message a line, for `program` in Codex's environments.toml."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from agent_tools.engines.engine import GUEST_WORK_DIR
from agent_tools.errors import InvalidParams
from agent_tools.limits import MIB
from agent_tools.machine.pipes import own_pipes
from agent_tools.machine.race import race
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
    """Serve one client, until stdin has ended and all is answered, or stdout is closed.

    `folder` is the host's name of the sandbox's folder.

    Raises:
        InvalidParams: stdin and stdout are not two pipes of a client, or stderr is one of them.
    """
    async with own_pipes(MAX_MESSAGE) as (lines, sink):
        if lines is None:
            raise InvalidParams(
                "Codex starts this command, with a pipe for stdin, another for stdout, and stderr apart from both: "
                "see `codex config`."
            )

        async def write(message: str) -> None:
            with suppress(ConnectionError):  # the client has left
                await sink.write(f"{message}\n")
                await sink.flush()

        wire = CodexWire(OneSandbox(sandbox))
        connection = Connection(wire, SessionContainer(("", ""), lambda: "", Home(GUEST_WORK_DIR, (folder,))), write)
        starting = asyncio.ensure_future(aside(sandbox.start))
        try:
            serving = asyncio.ensure_future(connection.serve(lines.next, to_the_last=True))
            await race(serving, sink.closed())
            if not serving.cancelled():
                serving.result()
        finally:
            await asyncio.gather(starting, return_exceptions=True)
            await wire.close()
