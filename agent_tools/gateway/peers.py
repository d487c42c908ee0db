"""Forwards a request to the gateway of the service that has its container or response.

Theory of operation
    Any load balancer may stand before gateways that share a database. If another gateway has the sandbox of a request's
    container, or runs its response, the request is forwarded there unchanged, with the client's own key, and the answer
    is passed back piece by piece. The forwarded request has `shared_secret`, so the other gateway neither counts nor
    forwards it again. If no connection can be made, the request is served here, and the container is handed over.
"""

from __future__ import annotations

import hmac
import json
import logging
import re
import secrets
import threading
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from urllib.parse import quote

import httpx
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from agent_tools.containers.records import ContainerRecord
from agent_tools.errors import AgentToolsError, InvalidParams
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.data_dir import folder_id
from agent_tools.gateway.requests.failures import ApiError
from agent_tools.gateway.sse import DONE, unless_gone
from agent_tools.gateway.store.records import GatewayRow
from agent_tools.gateway.store.store import Store, packed
from agent_tools.machine.owner import Owner, is_orphan

# The gateways that share a database: each has a row in it while it lives, and knows the others by theirs.
#
# They are one service if they also share `data_dir` with files, uploads and saved variables: then any of them serves
# any request. A gateway that cannot share them with the others does not start.

BEAT_EVERY = 2.0  # seconds between two signs of life
MAX_SILENCE = 20.0  # seconds without one, after which a gateway on another machine counts as gone
PATIENCE = 3 * BEAT_EVERY  # seconds in which others may give a sign, after this gateway itself could give none
_log = logging.getLogger(__name__)


class Presence:
    """One gateway's row, and the rows of the others as of its last heartbeat. Thread-safe.

    Attributes:
        id: its name among them, new at each start.
    """

    def __init__(self, config: GatewayConfig, store: Store) -> None:
        self.id = secrets.token_hex(16)
        self._store = store
        self._lock = threading.Lock()
        self._others: dict[str, GatewayRow] = {}
        self._beat_at = self._patient_until = time.monotonic()
        self._row = GatewayRow(
            id=self.id,
            created_at=time.time(),
            seen_at=time.time(),
            owner=packed(Owner.current().labels),
            folder=folder_id(config.data_dir),
            address=config.address,
        )

    def join(self) -> None:
        """Add this gateway's row.

        Raises:
            InvalidParams: it cannot share the database with one of them.
        """
        check_others(self._store, self._row.folder)
        self._store.add(self._row)
        self.beat()

    def leave(self) -> None:
        """Remove this gateway's row, so that the others may take its containers."""
        self._store.delete(GatewayRow, id=self.id)

    def beat(self) -> None:
        """Write a heartbeat, read those of the others, and remove the rows of dead gateways."""
        now = time.time()
        if not self._store.change(GatewayRow, self.id, seen_at=now):  # others considered it dead
            _log.warning("this gateway could not write a heartbeat for too long: others took its place")
            self._store.add_if_new(replace(self._row, seen_at=now))
        rows = [row for row in self._store.find(GatewayRow) if row.id != self.id]
        self._note_gap()
        with self._lock:
            self._others = {row.id: row for row in rows if not self._is_gone(row, now)}
        for row in rows:
            if row.id not in self._others:
                self._store.delete(GatewayRow, id=row.id, seen_at=row.seen_at)

    @property
    def has_others(self) -> bool:
        """Other gateways are alive."""
        return bool(self._others)

    def is_alive(self, id_: str) -> bool:
        """Return True if another gateway is alive. A new one is looked up in the database."""
        return self.other(id_) is not None

    def other(self, id_: str) -> GatewayRow | None:
        """Return the row of another gateway that is alive."""
        with self._lock:
            known = self._others.get(id_)
        row = known or self._store.get(GatewayRow, id_)
        return row if row and row.id != self.id and not self._is_gone(row, time.time()) else None

    def _note_gap(self) -> None:
        """Give the others more time after this gateway's heartbeats failed: the database failed for all."""
        now = time.monotonic()
        if now - self._beat_at > MAX_SILENCE / 2:
            self._patient_until = now + PATIENCE
        self._beat_at = now

    def _is_gone(self, row: GatewayRow, now: float) -> bool:
        is_patient = time.monotonic() < self._patient_until
        return is_orphan(json.loads(row.owner)) if is_patient else is_gone(row, now)


def check_others(store: Store, folder: str) -> None:
    """Check that a gateway with this `data_dir` may share a database with those that are alive on it.

    Raises:
        InvalidParams: it may not.
    """
    now = time.time()
    for row in store.find(GatewayRow):
        if is_gone(row, now):
            continue
        if row.folder != folder:
            raise InvalidParams(
                "Another gateway uses this database with another data_dir: files and uploads would be missing here. "
                "Give both the same folder, on shared storage, or stop the other one (it counts as stopped after "
                f"{MAX_SILENCE:g} s without a heartbeat)."
            )
        if store.is_file and _machine(row) != _machine_here():
            raise InvalidParams(
                "A gateway on another machine uses this SQLite file, which only programs of one machine can share: "
                "give both a PostgreSQL database (--database)."
            )


def is_gone(row: GatewayRow, now: float) -> bool:
    """Return True if a gateway's process has ended for certain, or its last heartbeat is too old."""
    return is_orphan(json.loads(row.owner)) or now - row.seen_at > MAX_SILENCE


def _machine(row: GatewayRow) -> str:
    return str(json.loads(row.owner).get("agent_tools.host", "")).partition("/")[0]


def _machine_here() -> str:
    return Owner.current().host.partition("/")[0]


FORWARDED = "x-agent-tools-forwarded"  # the header with the secret
CONNECT_SECONDS = 2.0
_HOP = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"),
        *("transfer-encoding", "upgrade", "host", "content-length", "x-request-id", "date", "server", FORWARDED),
    )
)
"""Headers of one connection (RFC 9110, 7.6.1), and those that each gateway makes itself."""


class Elsewhere(AgentToolsError):
    """Another gateway, which has an address, should answer the request."""

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
        """Return True if another gateway has forwarded a request.

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
        """Other gateways are alive, so requests may be forwarded."""
        return bool(self._config.address) and self._presence.has_others

    def look(self, gateway_id: str) -> None:
        """Look up the gateway of this id.

        Raises:
            Elsewhere: it is alive and has an address.
        """
        row = self._presence.other(gateway_id) if gateway_id and self._config.address else None
        if row and row.address:
            raise Elsewhere(row)

    def look_for_holder(self, container: ContainerRecord) -> None:
        """Look up the gateway that has a container's sandbox. Errors as for `look`."""
        if container.gateway != self._presence.id:
            self.look(container.gateway)

    async def forward(self, request: Request, body: bytes, gateway: GatewayRow) -> Response | None:
        """Forward a request and return the answer; None if no connection can be made.

        Raises:
            ApiError: 502, the other gateway ended the connection.
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


# The answer of another gateway on its way to the client: unchanged, or ended after a whole event if it is cut off.


_END = b"\n\n"
_NUMBER = re.compile(rb'"sequence_number":(\d{1,15})\b')  # text in an event has its quotation marks escaped


def broken_off() -> ApiError:
    """Return the error of an answer whose gateway has died."""
    message = "The gateway of the container ended the connection; the container's files are kept."
    return ApiError(502, message, code="gateway_lost")


async def relayed(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Yield an answer piece by piece, and close it.

    A cut stream of events ends with an event that says so; any other cut answer stays incomplete, so that the client
    notices.
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
    """Passes whole events on, and counts them.

    Attributes:
        rest: the beginning of an event.
    """

    def __init__(self) -> None:
        self.rest = bytearray()
        self._number = -1

    def take(self, piece: bytes) -> bytes:
        """Return the events that this piece completes."""
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
        """Return the last events, in the formats of both responses and chat completions."""
        error = broken_off().body["error"]
        flat = {name: error[name] for name in ("code", "message", "param")}
        event = {"type": "error", **flat, "error": error, "sequence_number": self._number + 1}
        return b"event: error\ndata: " + json.dumps(event, separators=(",", ":")).encode() + _END + DONE
