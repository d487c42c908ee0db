"""The API server: short requests with bounded answers, and streams of lines. Thread-safe.

What it says is bounded like a guest's words: not because it would lie, but because annotations and messages in it come
from whoever may write to the namespace.
"""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import requests
from requests.adapters import HTTPAdapter

from agent_tools.errors import EngineError, EngineUnavailable
from agent_tools.limits import MIB
from agent_tools.text import one_line, shorten

MAX_ANSWER = 32 * MIB
MAX_CONNECTIONS = 64  # that are kept for the next request; more are made and closed again
MOST_TOLD = 500  # characters of the server's words in an error of ours
TRIES = 4  # where the server asks us to wait
LONGEST_WAIT = 10.0  # seconds, whatever it asks for
PAGE = 500  # objects of a list in one answer
UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, TOO_MANY, INTERNAL = 401, 403, 404, 409, 429, 500

Json = dict[str, Any]
Query = Mapping[str, str]
NOTHING: Query = {}


class ApiRefused(EngineError):
    """The API server refused a request. `status` is HTTP's, `reason` Kubernetes' own word."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"Kubernetes refused: {message or reason or status}")
        self.status = status
        self.reason = reason


class Api:
    """Requests to one cluster. `timeout` is how many seconds one answer may take."""

    def __init__(self, cluster: Cluster, timeout: float) -> None:
        self.cluster = cluster
        self.timeout = timeout
        self._lock = threading.Lock()
        self._session: requests.Session | None = None
        self._pid = 0

    def ask(self, method: str, path: str, body: Json | None = None, query: Query = NOTHING) -> Json:
        """Send one request; return the object that comes back.

        Raises:
            ApiRefused: with the server's message.
            EngineUnavailable: nobody answers, or our credentials are not accepted.
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
        """Return a plain text, as much of it as `most` bytes."""
        with _translated(), contextlib.closing(self._send("GET", path, None, query, self.timeout)) as answer:
            if answer.status_code >= 300:
                _taken(answer)
            return _content(answer, most, cut=True).decode("utf-8", "replace")

    def items(self, path: str, query: Query = NOTHING) -> Iterator[Json]:
        """Yield the objects of a list, page by page; those that are none are passed over."""
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
        """Open a watch in `opening` seconds, or in one answer's; nothing comes out of it for so many seconds at most.

        One that the server is too busy for, or that it does not open in time, ends without a word.
        """
        answer = self._opened(path, min(opening, self.timeout), query)
        if answer is None:
            yield Lines(iter(()))
            return
        with contextlib.closing(answer):
            if socket := getattr(answer.raw.connection, "sock", None):  # None where it is closed after this answer
                socket.settimeout(seconds)
            yield Lines(answer.iter_content(chunk_size=None))

    def _opened(self, path: str, seconds: float, query: Query) -> requests.Response | None:
        with _translated():
            try:
                answer = self._send("GET", path, None, dict(query, watch="true"), seconds)
            except requests.Timeout:
                return None
            if answer.status_code < 300:
                return answer
            with contextlib.closing(answer):
                if answer.status_code == TOO_MANY:
                    time.sleep(min(seconds, _asked_to_wait(answer)))
                elif answer.status_code < INTERNAL:
                    _taken(answer)
        return None

    def close(self) -> None:
        """Close the connections that are kept; the next request opens one."""
        with self._lock:
            if self._session is not None and self._pid == os.getpid():
                self._session.close()
            self._session = None

    def _send(self, method: str, path: str, body: Json | None, query: Query, seconds: float) -> requests.Response:
        authorization = self.cluster.authorization()
        return self._http().request(
            method,
            self.cluster.server + path,
            params=dict(query),
            json=body,
            headers={"Authorization": authorization} if authorization else {},
            timeout=seconds,
            stream=True,
            allow_redirects=False,
        )

    def _http(self) -> requests.Session:
        """The session of this process: a forked child makes one of its own."""
        with self._lock:
            if self._session is None or self._pid != os.getpid():
                self._session, self._pid = _session(self.cluster), os.getpid()
            return self._session


def _session(cluster: Cluster) -> requests.Session:
    session = requests.Session()
    session.trust_env = False  # no ~/.netrc, no proxy: the cluster's credentials go to the cluster
    session.mount("http://", HTTPAdapter(pool_maxsize=MAX_CONNECTIONS))
    adapter = HTTPAdapter(pool_maxsize=MAX_CONNECTIONS)
    if cluster.server_name:
        adapter.init_poolmanager(
            10, MAX_CONNECTIONS, server_hostname=cluster.server_name, assert_hostname=cluster.server_name
        )
    session.mount("https://", adapter)
    session.verify = (cluster.authorities or True) if cluster.is_verified else False
    session.cert = cluster.certificate
    return session


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (requests.RequestException, OSError) as exc:
        raise EngineUnavailable(
            f"No Kubernetes API server answers ({told(str(exc))}). `agent-tools doctor` shows what is wrong."
        ) from exc


def _asked_to_wait(answer: requests.Response) -> float:
    """Return the seconds after which the server is to be asked again."""
    wait = answer.headers.get("Retry-After", "")
    return min(LONGEST_WAIT, float(wait)) if wait.isdecimal() else 1.0


def _taken(answer: requests.Response) -> Json:
    """Return the object of an answer, or raise what it says."""
    status = answer.status_code
    if status < 300:
        return parsed(_content(answer, MAX_ANSWER))
    try:
        said = parsed(_content(answer, MAX_ANSWER))
    except EngineError:
        said = {}
    message = told(said.get("message") or answer.reason or "")
    if status == UNAUTHORIZED:
        raise EngineUnavailable(f"The Kubernetes API server does not accept our credentials ({message}).")
    raise ApiRefused(status, str(said.get("reason") or "")[:80], message)


def _content(answer: requests.Response, most: int, *, cut: bool = False) -> bytes:
    content = bytearray()
    for piece in answer.iter_content(65_536):
        content += piece
        if len(content) > most:
            if cut:
                return bytes(content[:most])
            raise EngineError(f"The Kubernetes API server's answer has more than {most:,} bytes.")
    return bytes(content)


def quoted(*path: str) -> str:
    """Return parts of a path, each whole."""
    return "/".join(quote(part, safe="") for part in path)


def told(value: object) -> str:
    """Return some words of the server in one line of bounded length."""
    text = value if isinstance(value, str) else json.dumps(value)
    return one_line(shorten(" ".join(text.split()), MOST_TOLD))


# A cluster, and who we are there.


@dataclass(frozen=True)
class Cluster:
    """One cluster, and who we are there.

    Attributes:
        server: the URL of its API server.
        namespace: of the context, or of this process's own pod.
        authorities: the file of certificates to trust; None for those of this machine.
        certificate: the files of our own certificate and its key.
        server_name: the name in the server's certificate where it is another one than in the URL.
        authorization: returns the current value of that header, '' for none; a token may have been renewed.
    """

    server: str
    namespace: str
    authorities: str | None = None
    is_verified: bool = True
    certificate: tuple[str, str] | None = None
    server_name: str | None = None
    authorization: Callable[[], str] = lambda: ""

    def tls(self) -> ssl.SSLContext:
        """Return how to speak TLS with it."""
        context = ssl.create_default_context(cafile=self.authorities)
        if not self.is_verified:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate:
            context.load_cert_chain(*self.certificate)
        return context


# The JSON of the API server, bounded: one object, or the lines of a watch in whatever pieces they come.


MAX_LINE = 4 * MIB


class Lines:
    """The objects of a watch, one a line."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._head = bytearray()  # of the line that is not whole yet
        self._whole: list[bytes] = []

    def next(self) -> dict[str, Any] | None:
        """Return the next object; None at the end, or when nothing has come for too long.

        Raises:
            EngineError: a line is too long, or is none.
        """
        while not self._whole:
            piece = self._piece()
            if not piece:
                return None
            self._whole = self._split(piece)
        return parsed(self._whole.pop(0))

    def _piece(self) -> bytes:
        with contextlib.suppress(requests.RequestException, OSError):  # a watch may end at any time
            return next(self._pieces, b"")
        return b""

    def _split(self, piece: bytes) -> list[bytes]:
        *ended, rest = piece.split(b"\n")
        lines = []
        for line in ended:
            lines.append(bytes(self._head) + line)
            self._head.clear()
        self._head += rest
        if max(map(len, lines), default=0) > MAX_LINE or len(self._head) > MAX_LINE:
            raise EngineError(f"The Kubernetes API server says more than {MAX_LINE:,} bytes of one object.")
        return [line for line in lines if line.strip()]


def parsed(content: bytes) -> dict[str, Any]:
    """Read one object.

    Raises:
        EngineError: it is none.
    """
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as exc:
        raise EngineError("The Kubernetes API server's answer is no JSON.") from exc
    if not isinstance(found, dict):
        raise EngineError("The Kubernetes API server's answer is no JSON object.")
    return found
