"""The code's side of HTTP: heads and bodies read from a channel, answers written to it, in h11's strict reading.

A head is bounded, and a request that h11 rejects is answered with 400 and the connection is closed. All bytes to
another server are written by h11, so that one request stays one request.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import h11

from agent_tools.runtime.egress.link import ClientHungUp, ProxyChannel
from agent_tools.runtime.egress.refusals import EgressRefused

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class HttpExchange:
    """Requests of one channel and their answers, one after the other."""

    def __init__(self, channel: ProxyChannel, max_head: int) -> None:
        self._channel = channel
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=max_head)
        self._is_tunnel = False

    async def request(self) -> h11.Request | None:
        """Return the next request's head; None at the end.

        Raises:
            EgressRefused: it is not HTTP, or its head is too long.
        """
        event = await self._next()
        return event if isinstance(event, h11.Request) else None

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the request's body as it comes.

        Raises:
            EgressRefused: it is not HTTP. ClientHungUp: the code closed the connection within it.
        """
        if self._http.they_are_waiting_for_100_continue:
            await self.answer(h11.InformationalResponse(status_code=100, headers=[]))
        while not isinstance(event := await self._next(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise ClientHungUp("the code has hung up")
            yield bytes(event.data)

    async def establish(self) -> bytes:
        """Answer that a tunnel is open; return the bytes that the code has already sent through it."""
        self._is_tunnel = True
        rest, _ = self._http.trailing_data
        await self._channel.write(ESTABLISHED)
        return bytes(rest)

    async def answer(self, event: h11.Event) -> None:
        """Send a part of the answer."""
        if data := self._http.send(event):
            await self._channel.write(data)

    async def refuse(self, refusal: EgressRefused) -> None:
        """Answer with an error, if no answer was sent yet."""
        if self._is_tunnel or self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        text = f"{refusal.explanation}\n".encode()
        fields = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(text)))]
        fields += [("Connection", "close"), ("Proxy-Connection", "close")]
        with contextlib.suppress(h11.LocalProtocolError):
            reason = refusal.explanation.encode(
                "ascii", "replace"
            )  # of a failed CONNECT, most clients show nothing else
            await self.answer(h11.Response(status_code=refusal.status, headers=fields, reason=reason))
            await self.answer(h11.Data(data=text))
            await self.answer(h11.EndOfMessage())

    def begin_again(self) -> bool:
        """Prepare for the next request; return whether there may be one."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def _next(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event, which is never NEED_DATA."""
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._channel.read())
        except h11.RemoteProtocolError as exc:
            raise EgressRefused(400, "no HTTP", "This is no HTTP/1.1 request.") from exc
        return event
