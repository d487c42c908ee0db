"""The pipes of a process whose client talks to it on stdin and stdout, read and written by the event loop itself.

A library that passes each line to a thread and back delays a call, and reads a line of any length into memory. This
module is for pipes and sockets; a terminal or a file is not read here, since other programs may share it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

STDIN, STDOUT, STDERR = 0, 1, 2


class StdinLines:
    """The lines that a client sends, as text: an async iterator. A line that is too long becomes an empty one."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def next(self) -> bytes | None:
        """Return the next line; None at the end."""
        try:
            return await self._reader.readline() or None
        except ValueError:  # longer than the reader's limit, which has dropped it
            return b"\n"

    def __aiter__(self) -> StdinLines:
        return self

    async def __anext__(self) -> str:
        if (line := await self.next()) is None:
            raise StopAsyncIteration
        return line.decode("utf-8", "replace")


class Sink:
    """Writes text to a client. `flush` waits while the client reads too slowly."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def write(self, text: str) -> None:
        """Send it, as soon as may be."""
        self._writer.write(text.encode())

    async def flush(self) -> None:
        """Wait until there is room for more.

        Raises:
            ConnectionError: the client has disconnected.
        """
        await self._writer.drain()

    async def closed(self) -> None:
        """Wait until the client has disconnected, and reads nothing more."""
        await self._writer.wait_closed()


@asynccontextmanager
async def own_pipes(most: int) -> AsyncIterator[tuple[Any, Any]]:
    """Reserve stdin and stdout for the protocol: a reader of limited lines, and a writer of answers.

    Meanwhile stdin is empty for all other code, and its output goes to stderr. Both are None where they are not two
    pipes or sockets.
    """
    taken = _taken()
    if taken is None:
        yield None, None
        return
    incoming_pipe, outgoing_pipe = taken
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=most)
    incoming, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(incoming_pipe, "rb")
    )
    # the protocol of a reader that nothing feeds is what tells a writer to wait
    flow = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    outgoing, _ = await loop.connect_write_pipe(lambda: flow, os.fdopen(outgoing_pipe, "wb"))
    outgoing.set_write_buffer_limits(0)  # an answer counts as sent once the client's pipe has all of it
    writer = asyncio.StreamWriter(outgoing, flow, None, loop)
    try:
        yield StdinLines(reader), Sink(writer)
    finally:
        writer.close()
        incoming.close()


def _taken() -> tuple[int, int] | None:
    """Replace stdin and stdout, and return the originals; None if they are not two separate pipes."""
    if not (_is_pipe(STDIN) and _is_pipe(STDOUT)) or _is_same(STDIN, STDOUT) or _is_same(STDOUT, STDERR):
        return None
    theirs, ours = (fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 3) for each in (STDIN, STDOUT))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), STDIN)
    os.dup2(STDERR, STDOUT)
    return theirs, ours


def _is_same(one: int, other: int) -> bool:
    """Return whether two descriptors are one pipe or socket, or one of them is closed."""
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return True


def _is_pipe(descriptor: int) -> bool:
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
