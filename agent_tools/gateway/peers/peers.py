"""The other gateways of a service, by their addresses: a request for what one of them has is answered by it.

Theory of operation
    Any load balancer may stand before gateways that share a database. A request whose container has its sandbox at
    another gateway, or that is about a response under way there, is sent on to that one as it came, with the client's
    own key, and the answer goes back piece by piece. It bears `shared_secret`, so the other one neither counts it again
    nor sends it on. If no connection can be made, the request is served here, and the container is handed over.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import AsyncIterator, Mapping
from urllib.parse import quote

import httpx
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from agent_tools.containers.records import ContainerRecord
from agent_tools.errors import AgentToolsError
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.jobs.sse import DONE, unless_gone
from agent_tools.gateway.peers.presence import Presence
from agent_tools.gateway.requests.failures import ApiError
from agent_tools.gateway.store.records import GatewayRow

FORWARDED = "x-agent-tools-forwarded"  # the header that holds the secret
CONNECT_SECONDS = 2.0
_HOP = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"),
        *("transfer-encoding", "upgrade", "host", "content-length", "x-request-id", "date", "server", FORWARDED),
    )
)
"""Headers of one connection (RFC 9110, 7.6.1), and those that each gateway makes itself."""


class Elsewhere(AgentToolsError):
    """A request is for another gateway that has an address."""

    def __init__(self, gateway: GatewayRow) -> None:
        super().__init__("The request is for another gateway.")
        self.gateway = gateway


class Peers:
    """One per gateway; `aclose` it at the end.

    Attributes:
        forwarded: the number of requests that others have answered.
    """

    def __init__(self, config: GatewayConfig, presence: Presence) -> None:
        self.forwarded = 0
        self._config = config
        self._presence = presence
        patience = httpx.Timeout(config.turn_timeout + config.queue_timeout, connect=CONNECT_SECONDS)
        self._client = httpx.AsyncClient(timeout=patience, limits=httpx.Limits(max_connections=None), trust_env=False)

    def has_sent(self, headers: Mapping[str, str]) -> bool:
        """Return True if another gateway has sent a request on.

        Raises:
            ApiError: 403, it does not know the secret.
        """
        given = headers.get(FORWARDED)
        if given is None:
            return False
        secret = self._config.shared_secret
        if not secret or not hmac.compare_digest(given.encode("latin-1", "replace"), secret.encode()):
            raise ApiError(
                403, f"The {FORWARDED} header is not the shared_secret of this gateway.", code="wrong_shared_secret"
            )
        return True

    @property
    def are_there(self) -> bool:
        """Requests may be sent on, since other gateways are alive."""
        return bool(self._config.address) and self._presence.has_others

    def look(self, gateway_id: str) -> None:
        """Look for a gateway of this id among the others.

        Raises:
            Elsewhere: it is alive and has an address.
        """
        row = self._presence.other(gateway_id) if gateway_id and self._config.address else None
        if row and row.address:
            raise Elsewhere(row)

    def look_for_holder(self, container: ContainerRecord) -> None:
        """Look for the gateway that has a container's sandbox, as `look` does."""
        if container.gateway != self._presence.id:
            self.look(container.gateway)

    async def forward(self, request: Request, body: bytes, gateway: GatewayRow) -> Response | None:
        """Send a request on, and the answer back; None if no connection can be made.

        Raises:
            ApiError: 502, the other gateway broke off.
        """
        path = quote(request.scope["path"]) + (f"?{request.url.query}" if request.url.query else "")
        headers = [pair for pair in request.headers.raw if pair[0].decode("latin-1").lower() not in _HOP]
        headers.append((FORWARDED.encode(), self._config.shared_secret.encode()))
        url = gateway.address.rstrip("/") + path
        asked = self._client.build_request(request.method, url, headers=headers, content=body or None)
        answers: list[httpx.Response] = []

        async def ask() -> None:
            answers.append(await self._client.send(asked, stream=True))

        try:
            if not await unless_gone(ask(), request.receive):
                return Response(status_code=499)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            return None
        except httpx.HTTPError as exc:
            raise broken_off() from exc
        (answer,) = answers
        self.forwarded += 1
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
        return StreamingResponse(relayed(answer), answer.status_code, kept, background=BackgroundTask(answer.aclose))

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()


# The answer of another gateway on its way to the client: as it came; where it breaks off, to the end of an event.


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
