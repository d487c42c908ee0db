"""The answer of another gateway on its way to the client: as it came; where it breaks off, to the end of an event."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator

import httpx

from agent_tools.gateway.jobs.sse import DONE
from agent_tools.gateway.requests.failures import ApiError

_END = b"\n\n"
_NUMBER = re.compile(rb'"sequence_number":(\d{1,15})\b')  # text in an event has its quotation marks escaped


def broken_off() -> ApiError:
    """Return the error of an answer whose gateway is gone."""
    message = "The gateway that has the container broke off; the container's files are kept."
    return ApiError(502, message, code="gateway_lost")


async def relayed(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Yield an answer as it comes, and close it.

    A stream of events that breaks off ends with an event that says so; any other answer ends as it did, so that the
    client sees the cut.
    """
    is_stream = answer.headers.get("content-type", "").startswith("text/event-stream")
    events = _Events()
    try:
        async for piece in answer.aiter_raw():
            if whole := events.take(piece) if is_stream else piece:
                yield whole
        yield bytes(events.rest)
    except httpx.HTTPError:
        if not is_stream:
            raise
        yield events.broken_off()
    finally:
        await answer.aclose()


class _Events:
    """Passes whole events on, and knows the number of the last one.

    Attributes:
        rest: the beginning of an event.
    """

    def __init__(self) -> None:
        self.rest = bytearray()
        self._number = -1

    def take(self, piece: bytes) -> bytes:
        """Return the events that are whole with this piece."""
        searched = max(0, len(self.rest) - 1)
        self.rest += piece
        end = self.rest.rfind(_END, searched) + len(_END)
        if end < len(_END):
            return b""
        whole = bytes(self.rest[:end])
        del self.rest[:end]
        for found in _NUMBER.finditer(whole):
            self._number = int(found[1])
        return whole

    def broken_off(self) -> bytes:
        """Return the last events, in the shapes of responses and of chat completions at once."""
        error = broken_off().body["error"]
        flat = {name: error[name] for name in ("code", "message", "param")}
        event = {"type": "error", **flat, "error": error, "sequence_number": self._number + 1}
        return b"event: error\ndata: " + json.dumps(event, separators=(",", ":")).encode() + _END + DONE
