"""A client of the API server: short requests with bounded answers, and watch streams. Thread-safe.

Answers are bounded and treated as untrusted, since every writer of the namespace can set annotations and messages. So
requests go through httpx2, which `lightkube` uses as well: its own client reads answers of any size into memory, its
watch has no time limit without data, and its exec returns at the end of the program.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx2
from lightkube.core.exceptions import ConfigError

from agent_tools.engines.kubernetes.answers import Lines, parsed, readable
from agent_tools.engines.kubernetes.cluster import Cluster
from agent_tools.errors import EngineError, EngineUnavailable
from agent_tools.limits import MIB

MAX_ANSWER = 32 * MIB
TRIES = 4  # if the server asks the client to wait
LONGEST_WAIT = 10.0  # seconds to wait, at most
PAGE = 500  # objects of a list in one answer
UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, TOO_MANY, INTERNAL = 401, 403, 404, 409, 429, 500

Json = dict[str, Any]
Query = Mapping[str, str | Sequence[str]]
NOTHING: Query = {}


class ApiRefused(EngineError):
    """The API server rejected a request. `status` is HTTP's, `reason` is Kubernetes' reason."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"Kubernetes refused: {message or reason or status}")
        self.status = status
        self.reason = reason


class Api:
    """A client for one cluster. `timeout` is the limit for one answer, in seconds."""

    def __init__(self, cluster: Cluster, timeout: float) -> None:
        self.cluster = cluster
        self.timeout = timeout
        self._lock = threading.Lock()
        self._client: httpx2.Client | None = None
        self._pid = 0

    def ask(self, method: str, path: str, body: Json | None = None, query: Query = NOTHING) -> Json:
        """Send one request; return the object in the answer.

        Raises:
            ApiRefused: with the server's message.
            EngineUnavailable: the server does not answer, or rejects the credentials.
        """
        for left in reversed(range(TRIES)):
            with _translated():
                answer = self._send(method, path, body, query, self.timeout)
                with contextlib.closing(answer):
                    if answer.status_code != TOO_MANY or not left:
                        return _taken(answer)
                    wait = _asked_to_wait(answer)
            time.sleep(wait)
        raise AssertionError("the last try has returned")

    def text(self, path: str, most: int, query: Query = NOTHING) -> str:
        """Return the first `most` bytes of a plain text."""
        with _translated(), contextlib.closing(self._send("GET", path, None, query, self.timeout)) as answer:
            if answer.status_code >= 300:
                _taken(answer)
            return _content(answer, most, cut=True).decode("utf-8", "replace")

    def items(self, path: str, query: Query = NOTHING) -> Iterator[Json]:
        """Yield the objects of a list, page by page; entries that are not objects are skipped."""
        page = dict(query, limit=str(PAGE))
        while True:
            answer = self.ask("GET", path, query=page)
            yield from (item for item in answer.get("items") or () if isinstance(item, dict))
            more = (answer.get("metadata") or {}).get("continue")
            if not isinstance(more, str) or not more:
                return
            page["continue"] = more

    @contextlib.contextmanager
    def watch(self, path: str, opening: float, seconds: float, query: Query = NOTHING) -> Iterator[Lines]:
        """Open a watch within `opening` seconds, or the limit of one answer, and end it after `seconds` without data.

        If the server is too busy or does not open it in time, the watch ends without an error.
        """
        answer = self._opened(path, min(opening, self.timeout), query)
        if answer is None:
            yield Lines(iter(()))
            return
        with contextlib.closing(answer):
            answer.request.extensions["timeout"]["read"] = seconds
            yield Lines(_until_broken(answer.iter_bytes()))

    def _opened(self, path: str, seconds: float, query: Query) -> httpx2.Response | None:
        with _translated():
            try:
                answer = self._send("GET", path, None, {**query, "watch": "true"}, seconds)
            except httpx2.TimeoutException:
                return None
            if answer.status_code < 300:
                return answer
            with contextlib.closing(answer):
                if answer.status_code == TOO_MANY:
                    time.sleep(min(seconds, _asked_to_wait(answer)))
                elif answer.status_code < INTERNAL:
                    _taken(answer)
        return None

    def upgrade(self, path: str, query: Query, headers: Mapping[str, str], seconds: float) -> httpx2.Response:
        """Ask the server to speak another protocol; return its answer, open.

        Raises:
            ApiRefused: with the server's message.
            EngineUnavailable: the server does not answer, or rejects the credentials.
        """
        with _translated():
            answer = self._send("GET", path, None, query, seconds, headers)
            if answer.status_code >= 300:
                with contextlib.closing(answer):
                    _taken(answer)
            return answer

    def close(self) -> None:
        """Close all connections; the next request opens one."""
        with self._lock:
            if self._client is not None and self._pid == os.getpid():
                self._client.close()
            self._client = None

    def _send(
        self,
        method: str,
        path: str,
        body: Json | None,
        query: Query,
        seconds: float,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        extensions = {"sni_hostname": self.cluster.server_name} if self.cluster.server_name else {}
        http = self._http()
        request = http.build_request(
            method, path, params=query, json=body, headers=headers, timeout=seconds, extensions=extensions
        )
        return http.send(request, stream=True)

    def _http(self) -> httpx2.Client:
        """The HTTP client of this process; a forked child makes its own."""
        with self._lock:
            if self._client is None or self._pid != os.getpid():
                self._client, self._pid = self.cluster.client(), os.getpid()
            return self._client


def _until_broken(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the pieces of a watch, which may end at any time."""
    with contextlib.suppress(httpx2.HTTPError):
        yield from pieces


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (httpx2.HTTPError, ConfigError, OSError, ValueError, KeyError) as exc:
        raise EngineUnavailable(
            f"No Kubernetes API server answers ({readable(str(exc))}). `agent-tools doctor` shows what is wrong."
        ) from exc


def _asked_to_wait(answer: httpx2.Response) -> float:
    """Return the seconds to wait before the next try."""
    wait = answer.headers.get("Retry-After", "")
    return min(LONGEST_WAIT, float(wait)) if wait.isdecimal() else 1.0


def _taken(answer: httpx2.Response) -> Json:
    """Return the object of an answer, or raise its error."""
    status = answer.status_code
    if status < 300:
        return parsed(_content(answer, MAX_ANSWER))
    try:
        said = parsed(_content(answer, MAX_ANSWER))
    except EngineError:
        said = {}
    message = readable(said.get("message") or answer.reason_phrase or "")
    if status == UNAUTHORIZED:
        raise EngineUnavailable(f"The Kubernetes API server does not accept our credentials ({message}).")
    raise ApiRefused(status, str(said.get("reason") or "")[:80], message)


def _content(answer: httpx2.Response, most: int, *, cut: bool = False) -> bytes:
    content = bytearray()
    for piece in answer.iter_bytes():
        content += piece
        if len(content) > most:
            if cut:
                return bytes(content[:most])
            raise EngineError(f"The Kubernetes API server's answer has more than {most:,} bytes.")
    return bytes(content)


def quoted(*path: str) -> str:
    """Return a path of percent-encoded parts."""
    return "/".join(quote(part, safe="") for part in path)
