"""A client of the API server: short requests with bounded answers, and watch streams. Thread-safe.

Answers are bounded and treated as untrusted, since every writer of the namespace can set annotations and messages.
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

# Reads from a pod's status whether it runs, is starting, or will not run, and why. Pure functions.
#
# The status: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#PodStatus


UNDER_WAY = ("ContainerCreating", "PodInitializing")
MOST_CONDITIONS = 50  # conditions and containers of one pod that are read
HINTS = {
    "seccomp": "The profile must be on every node: deploy/kubernetes has a DaemonSet that puts it there.",
    "image": "Nodes must be able to pull it: docs/kubernetes.md says how to bring it to a registry.",
    "Unschedulable": "No node has room for it, or fits its selector.",
    "user namespace": "Leave AGENT_TOOLS_KUBERNETES_USER_NAMESPACES unset on nodes that have none.",
}


@dataclass(frozen=True)
class Progress:
    """The state of a start: how far it is.

    Attributes:
        failure: why it will not run; '' if it may.
        waits_for: the reason why it does not run yet, for the time-out message.
        pod: the name of its pod, if it differs from the object's.
    """

    is_running: bool = False
    has_ended: bool = False
    failure: str = ""
    waits_for: str = ""
    pod: str = ""


def progress_of(pod: dict[str, Any]) -> Progress:
    """Read the progress of a pod; an unreadable status counts as starting."""
    status = table(pod.get("status"))
    phase = status.get("phase")
    if table(pod.get("metadata")).get("deletionTimestamp"):
        return Progress(has_ended=True, failure="another client is deleting it")
    if phase in ("Succeeded", "Failed"):
        return Progress(has_ended=True, failure=_with_hint(" ".join(_endings(status)) or f"it has ended ({phase})"))
    waiting = [_words(each) for each in _states(status, "waiting") if each.get("reason") not in UNDER_WAY]
    if waiting:
        return Progress(failure=_with_hint("; ".join(waiting)))
    if phase == "Running" and _states(status, "running"):
        return Progress(is_running=True)
    return Progress(waits_for=_with_hint("; ".join(_unmet(status)) or "its node"))


def _endings(status: dict[str, Any]) -> Iterator[str]:
    if status.get("reason") or status.get("message"):
        yield _words(status)
    for each in _states(status, "terminated"):
        yield f"{_words(each)} (exit code {readable(each.get('exitCode'))})"


def _unmet(status: dict[str, Any]) -> Iterator[str]:
    """Yield the reasons of conditions that are not met: why no node runs the pod."""
    for each in tables(status.get("conditions"))[:MOST_CONDITIONS]:
        if each.get("status") == "False" and each.get("type") == "PodScheduled":
            yield _words(each)


def _states(status: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the containers' states of this name."""
    found = [table(each.get("state")).get(name) for each in tables(status.get("containerStatuses"))]
    return [each for each in found if isinstance(each, dict)]


def _words(said: dict[str, Any]) -> str:
    parts = [said.get("reason"), said.get("message")]
    return ": ".join(readable(part) for part in parts if isinstance(part, str) and part)


def _with_hint(words: str) -> str:
    hint = next((hint for name, hint in HINTS.items() if name.lower() in words.lower()), "")
    return f"{words}. {hint}" if hint else words


def table(value: object) -> dict[str, Any]:
    """Return a JSON object; an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def tables(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list of JSON."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


SILENCE = 5.0  # seconds without an event, after which a watch is opened again: its connection may be dead
PAUSE = 0.5  # seconds before a watch that ended without an error is opened again
GONE = Progress(has_ended=True, failure="another client deleted it")


def await_start(api: Api, path: str, name: str, judge: Callable[[Json], Progress], deadline: float) -> Progress:
    """Wait until an object of a list runs or will not; at the deadline (monotonic seconds) return its progress.

    `judge` returns the progress of an object. A watch begins with the object as it is, so earlier events are not
    missed; a watch that the server ends or does not open is opened again.

    Raises:
        EngineError: the API server does not answer.
    """
    progress = Progress(waits_for="its node")
    while not _is_decided(progress) and (started := time.monotonic()) < deadline:
        opening = max(SILENCE, deadline - started)
        with api.watch(path, opening, SILENCE, {"fieldSelector": f"metadata.name={name}"}) as lines:
            while not _is_decided(progress) and time.monotonic() < deadline and (event := lines.next()):
                found = table(event.get("object"))
                if table(found.get("metadata")).get("name") == name:
                    progress = GONE if event.get("type") == "DELETED" else judge(found)
        if time.monotonic() - started < PAUSE and not _is_decided(progress):
            time.sleep(PAUSE)
    return progress


def _is_decided(progress: Progress) -> bool:
    return progress.is_running or progress.has_ended or bool(progress.failure)


MAX_ANSWER = 32 * MIB
MAX_CONNECTIONS = 64  # that are kept for the next request; more are made and closed again
MOST_SERVER_CHARS = 500  # characters of the server's message in an error
TRIES = 4  # if the server asks the client to wait
LONGEST_WAIT = 10.0  # seconds to wait, at most
PAGE = 500  # objects of a list in one answer
UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, TOO_MANY, INTERNAL = 401, 403, 404, 409, 429, 500

Json = dict[str, Any]
Query = Mapping[str, str]
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
        self._session: requests.Session | None = None
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
        """Close idle connections; the next request opens one."""
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
        """The HTTP session of this process; a forked child makes its own."""
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
            f"No Kubernetes API server answers ({readable(str(exc))}). `agent-tools doctor` shows what is wrong."
        ) from exc


def _asked_to_wait(answer: requests.Response) -> float:
    """Return the seconds to wait before the next try."""
    wait = answer.headers.get("Retry-After", "")
    return min(LONGEST_WAIT, float(wait)) if wait.isdecimal() else 1.0


def _taken(answer: requests.Response) -> Json:
    """Return the object of an answer, or raise its error."""
    status = answer.status_code
    if status < 300:
        return parsed(_content(answer, MAX_ANSWER))
    try:
        said = parsed(_content(answer, MAX_ANSWER))
    except EngineError:
        said = {}
    message = readable(said.get("message") or answer.reason or "")
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
    """Return a path of percent-encoded parts."""
    return "/".join(quote(part, safe="") for part in path)


def readable(value: object) -> str:
    """Return a message of the server in one line of bounded length."""
    text = value if isinstance(value, str) else json.dumps(value)
    return one_line(shorten(" ".join(text.split()), MOST_SERVER_CHARS))


# A cluster, and the client's credentials.


@dataclass(frozen=True)
class Cluster:
    """One cluster, and the client's credentials.

    Attributes:
        server: the URL of its API server.
        namespace: of the context, or of this process's own pod.
        authorities: the file of certificates to trust; None for those of this machine.
        certificate: the files of the client's certificate and its key.
        server_name: the name in the server's certificate, if it differs from the URL.
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
        """Return the TLS context for the server."""
        context = ssl.create_default_context(cafile=self.authorities)
        if not self.is_verified:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate:
            context.load_cert_chain(*self.certificate)
        return context


# The JSON of the API server, bounded: one object, or the lines of a watch, in pieces of any size.


MAX_LINE = 4 * MIB


class Lines:
    """The objects of a watch, one a line."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._head = bytearray()  # the incomplete line
        self._whole: list[bytes] = []

    def next(self) -> dict[str, Any] | None:
        """Return the next object; None at the end, or after too long a silence.

        Raises:
            EngineError: a line is too long, or is not an object.
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
            raise EngineError(f"The Kubernetes API server sent more than {MAX_LINE:,} bytes for one object.")
        return [line for line in lines if line.strip()]


def parsed(content: bytes) -> dict[str, Any]:
    """Parse one object.

    Raises:
        EngineError: it is not a JSON object.
    """
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as exc:
        raise EngineError("The Kubernetes API server's answer is not JSON.") from exc
    if not isinstance(found, dict):
        raise EngineError("The Kubernetes API server's answer is not a JSON object.")
    return found
