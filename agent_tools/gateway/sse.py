"""Streams of server-sent events over an event log; a stream ends when the client disconnects.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agent_tools.bodies.connections import unless_disconnected
from agent_tools.gateway.event_log import EventLog, Logged
from agent_tools.gateway.requests.api_errors import ApiError

CHUNK_BYTES = 256 * 1024  # bytes
SEND_TIMEOUT = 300.0  # seconds in which a client must take one part of a stream
DONE = b"data: [DONE]\n\n"
AT_ONCE = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers against buffering of streams by proxies."""
_T = TypeVar("_T")
_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", **AT_ONCE}


class EventStreamResponse(Response):
    """The events of a log from an index on, then `[DONE]`. `on_gone` is called if the client disconnects before.

    With `named`, each event has its type as a name. After `heartbeat` seconds of silence a comment is sent; a client
    that does not take a part within `timeout` seconds counts as disconnected. `end` comes last; `sign_of_life` is sent
    in place of OpenAI's.
    """

    def __init__(
        self,
        log: EventLog,
        on_gone: Callable[[], None],
        *,
        start: int = 0,
        named: bool = True,
        heartbeat: float = 15.0,
        timeout: float = SEND_TIMEOUT,
        end: bytes = DONE,
        sign_of_life: bytes = b"",
    ) -> None:
        super().__init__(None, 200, _HEADERS)
        self._sent_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        self._log = log
        self._on_gone = on_gone
        self._start = start
        self._named = named
        self._heartbeat = heartbeat
        self._timeout = timeout
        self._end = end
        self._own_sign = sign_of_life

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole stream."""
        await send({"type": "http.response.start", "status": 200, "headers": self._sent_headers})
        if not await unless_gone(self._send_events(send), receive):
            self._on_gone()

    async def _send_events(self, send: Send) -> None:
        async for data in self._framed():
            with anyio.fail_after(self._timeout):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": self._end, "more_body": False})

    async def _framed(self) -> AsyncIterator[bytes]:
        """Yield new events together as they arrive, and a sign of life after a long silence."""
        seen, events = self._start, list[Logged]()
        while True:
            with anyio.move_on_after(self._heartbeat) as waiting:
                events = await self._log.after(seen)
            if waiting.cancelled_caught:
                yield self._sign_of_life(seen)
                continue
            if not events:
                return
            seen += len(events)
            for part in _parts(piece for event in events for piece in self._frame(event)):
                yield part

    def _sign_of_life(self, seen: int) -> bytes:
        """Return a comment or, for clients that count only events as life, OpenAI's event for it.

        It has the number of the last event: what a client asks for by `starting_after` stays the same.
        """
        if self._own_sign:
            return self._own_sign
        if not self._named:
            return b": still there\n\n"
        return b'event: keepalive\ndata: {"type":"keepalive","sequence_number":%d}\n\n' % max(seen - 1, 0)

    def _frame(self, event: Logged) -> tuple[bytes, bytes, bytes]:
        name = f"event: {event.kind}\n".encode() if self._named else b""
        return name + b"data: ", event.data, b"\n\n"


def _parts(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join pieces into parts small enough for a slow client to take in time; a large event becomes several parts."""
    part = bytearray()
    for piece in pieces:
        for start in range(0, len(piece), CHUNK_BYTES):
            part += piece[start : start + CHUNK_BYTES]
            if len(part) >= CHUNK_BYTES:
                yield bytes(part)
                part.clear()
    if part:
        yield bytes(part)


async def unless_gone(work: Coroutine[Any, Any, object], receive: Receive) -> bool:
    """Do some work, but cancel it when the client disconnects; return True if the work was done."""
    done = await unless_disconnected(receive, work)
    with contextlib.suppress(OSError, asyncio.CancelledError):
        done.result()
        return True
    return False


async def while_there(work: Coroutine[Any, Any, _T], receive: Receive) -> _T:
    """Return the result of some work.

    Raises:
        ApiError: 499, the client has disconnected; the work was cancelled.
    """
    done = await unless_disconnected(receive, work)
    if done.cancelled():
        raise ApiError(499, "The client has hung up.")
    return done.result()


async def ended(log: EventLog, request: Request) -> bool:
    """Wait for a log's end; return False if the client disconnected before."""
    return await unless_gone(log.closed(), request.receive)
