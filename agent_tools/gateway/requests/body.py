"""The body of a request as the application receives it: within its limits of bytes and time, and unpacked."""

from __future__ import annotations

import time
from collections.abc import Iterator

import anyio
import anyio.lowlevel
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.requests.api_errors import busy, late, too_large
from agent_tools.gateway.requests.decompression import Decoder, decoder_of
from agent_tools.limits import MIB

_OF_THE_PACKED = (b"content-encoding", b"content-length")


class Body:
    """Receives a body as it comes. `is_read` is true once it has all come."""

    def __init__(self, receive: Receive, config: GatewayConfig, headers: Headers) -> None:
        self._receive = receive
        self._left = max(config.max_upload_bytes, config.max_body_bytes) + MIB  # a form is larger than its file
        self._seconds_left = config.body_timeout
        self._rate = config.min_body_rate
        self.is_read = "transfer-encoding" not in headers and headers.get("content-length", "0") == "0"

    async def __call__(self) -> Message:
        """Receive a piece.

        Raises:
            Refusal: 408 or 413.
        """
        if self.is_read:
            return await self._receive()  # it waits until the client hangs up
        started = time.monotonic()
        with anyio.move_on_after(self._seconds_left) as waiting:
            message = await self._receive()
        if waiting.cancelled_caught:
            raise late("body")
        size = len(message.get("body", b""))
        self._seconds_left += size / self._rate - (time.monotonic() - started)
        self._left -= size
        if self._left < 0:
            raise too_large("The request is too large.")
        self.is_read = not message.get("more_body")
        return message


class DecompressionBudget:
    """Counts the unpacked bytes of all compressed bodies that arrive, and of each owner's. For one event loop."""

    def __init__(self, most: int, most_of_key: int) -> None:
        self._most = most
        self._most_of_key = most_of_key
        self._of_each: dict[object, tuple[str, int]] = {}  # with the owner

    def count(self, body: object, size: int, owner: str = "") -> None:
        """Count bytes of a body. A single body is limited by its own limit.

        Raises:
            ApiError: 503, together with others it has too many.
        """
        self._of_each[body] = owner, self._of_each.get(body, (owner, 0))[1] + size
        all_ = [each for _, each in self._of_each.values()]
        mine = [each for owns, each in self._of_each.values() if owns == owner]
        for sizes, most in ((all_, self._most), (mine, self._most_of_key)):
            if len(sizes) > 1 and sum(sizes) > most:
                message = "Too many compressed requests are in progress; send this one without Content-Encoding, or"
                raise busy(503, f"{message} later.", 5)

    def release(self, body: object) -> None:
        """Return the bytes of a body that its reader has, or whose request has ended."""
        self._of_each.pop(body, None)


class UnpackedBody:
    """Receives a compressed body, unpacked, within the budget of all; its reader limits its bytes."""

    def __init__(self, receive: Receive, decoder: Decoder, budget: DecompressionBudget, owner: str = "") -> None:
        self._receive = receive
        self._decoder = decoder
        self._budget = budget
        self._owner = owner
        self._pieces: Iterator[bytes] = iter(())
        self._has_come = self._is_over = False

    async def __call__(self) -> Message:
        """Receive a piece.

        Raises:
            ApiError: 400, it cannot be unpacked; 503, too much is unpacked at once; and as for `Body`.
        """
        while not self._is_over:
            if piece := next(self._pieces, b""):
                self._budget.count(self, len(piece), self._owner)
                await anyio.lowlevel.checkpoint()  # other clients are served between two pieces
                return {"type": "http.request", "body": piece, "more_body": True}
            if self._has_come:
                self._decoder.finish()
                self._is_over = True
                self._budget.release(self)
                return {"type": "http.request", "body": b"", "more_body": False}
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            self._pieces = self._decoder.unpacked(message.get("body", b""))
            self._has_come = not message.get("more_body")
        return await self._receive()


def unpacked(scope: Scope, body: Body, budget: DecompressionBudget) -> tuple[Scope, Body | UnpackedBody]:
    """Return a request without its Content-Encoding, and its body likewise."""
    decoder = decoder_of(", ".join(Headers(scope=scope).getlist("content-encoding")))
    if decoder is None:
        return scope, body
    headers = [pair for pair in scope["headers"] if pair[0] not in _OF_THE_PACKED]
    return {**scope, "headers": headers}, UnpackedBody(body, decoder, budget, scope.get("owner", ""))
