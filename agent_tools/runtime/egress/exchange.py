"""The code's side of HTTP: heads and bodies read from a channel, answers written to it, in h11's strict reading.

A head is bounded, and what h11 refuses is answered with 400 and the end of the connection. Nothing that the code wrote
reaches another server but through h11's other side, so that one request stays one.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import h11

from agent_tools.runtime.egress.link import Channel, HungUp
from agent_tools.runtime.egress.refusal import Refused

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Exchange:
    """Requests of one channel and their answers, one after the other."""

    def __init__(self, channel: Channel, max_head: int) -> None:
        self._channel = channel
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=max_head)
        self._is_tunnel = False

    async def request(self) -> h11.Request | None:
        """Return the next request's head, None when there is no other.

        Raises:
            Refused: it is no HTTP, or its head is too long.
        """
        event = await self._next()
        return event if isinstance(event, h11.Request) else None

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the request's body as it comes.

        Raises:
            Refused: it is no HTTP.
            HungUp: the code hung up within it.
        """
        if self._http.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        while not isinstance(event := await self._next(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise HungUp("the code has hung up")
            yield bytes(event.data)

    async def establish(self) -> bytes:
        """Say that a tunnel is there; return what the code has sent through it already."""
        self._is_tunnel = True
        rest, _ = self._http.trailing_data
        await self._channel.write(ESTABLISHED)
        return bytes(rest)

    async def answer(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        """Send a part of the answer."""
        await self._send(event)

    async def refuse(self, refusal: Refused) -> None:
        """Answer with a refusal, if nothing was answered yet."""
        if self._is_tunnel or self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        text = f"{refusal.told}\n".encode()
        fields = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(text)))]
        fields += [("Connection", "close"), ("Proxy-Connection", "close")]
        with contextlib.suppress(h11.LocalProtocolError):
            reason = refusal.told.encode("ascii", "replace")  # of a failed CONNECT, most clients show nothing else
            await self._send(h11.Response(status_code=refusal.status, headers=fields, reason=reason))
            await self._send(h11.Data(data=text))
            await self._send(h11.EndOfMessage())

    def begin_again(self) -> bool:
        """Make ready for the next request; return whether there may be one."""
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
            raise Refused(400, "no HTTP", "This is no HTTP/1.1 request.") from exc
        return event

    async def _send(self, event: h11.Event) -> None:
        if data := self._http.send(event):
            await self._channel.write(data)
