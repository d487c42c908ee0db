"""Connections of one process to a Docker engine, with the docker SDK's exceptions translated."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import docker.errors
import docker.transport
import requests
import requests.adapters
import urllib3
import urllib3.connection

from agent_tools.engines.docker.address import environment
from agent_tools.engines.docker.podman_form import EngineName, engine_name
from agent_tools.errors import EngineError, EngineUnavailable
from agent_tools.extras import pip_install
from agent_tools.text import one_line, shorten

SEE_DOCTOR = " `agent-tools doctor` shows what is wrong."
START_ENGINE_HINT = (
    "Start Docker (systemctl start docker, or Docker Desktop), or set DOCKER_HOST to an engine that runs, such as "
    "Podman's: unix:///run/user/<uid>/podman/podman.sock after systemctl --user start podman.socket. "
    f"On Debian and Ubuntu: apt-get install docker.io.{SEE_DOCTOR}"
)
USE_ENGINE_HINT = (
    "This user may not use the engine's socket: add the user to the group `docker` (usermod -aG docker <user>, then "
    "log in again), or set DOCKER_HOST to your own rootless engine."
    f"{SEE_DOCTOR}"
)
BUSY_HINT = (
    "It accepts connections but does not answer: it may be busy, for example with loading an image. Try again in a "
    f"minute; if that does not help, restart the engine.{SEE_DOCTOR}"
)
ADDRESS_HINT = f"DOCKER_HOST must begin with unix://, tcp:// or ssh://, or be unset. {START_ENGINE_HINT}"
_NO_ADDRESS = "Invalid bind address"  # the SDK's messages
BUILD_TIMEOUT = 3600  # seconds without data from the engine during a pull or build
MOST_EXPLAINED = 500  # characters of an engine's message in an error
MAX_CONNECTIONS = 64  # idle connections kept for the next request; further ones are closed after use
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LOCAL = ("http+docker://localhost", "http+docker://localunixsocket", "http+unix://")  # the SDK's names for a socket

_FAILURES = (
    docker.errors.DockerException,
    requests.RequestException,
    OSError,
    urllib3.exceptions.HTTPError,  # of progress, which the SDK reads by urllib3 alone
    docker.errors.StreamParseError,  # of progress that ends in the middle of a line
)
_TIMEOUTS = (requests.ReadTimeout, urllib3.exceptions.ReadTimeoutError)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Translate the SDK's exceptions; used as a decorator, or around the body of a generator."""
    try:
        yield
    except docker.errors.APIError as exc:
        raise EngineError(f"The engine rejected the request: {explained(exc)}") from exc
    except _FAILURES as exc:
        cause = _root_cause(exc)
        reason = getattr(cause, "strerror", None) or cause
        hint = USE_ENGINE_HINT if isinstance(cause, PermissionError) else START_ENGINE_HINT
        hint = BUSY_HINT if isinstance(exc, _TIMEOUTS) else hint
        hint = ADDRESS_HINT if _NO_ADDRESS in str(reason) else hint
        if "paramiko" in str(reason):
            raise EngineUnavailable(f"An engine over ssh needs more: {pip_install('ssh')}.") from exc
        raise EngineUnavailable(f"No engine answers ({reason}). {hint}") from exc


def explained(exc: docker.errors.APIError) -> str:
    """Return the engine's own message in one line of bounded length: some repeat the whole request."""
    return one_line(shorten(str(exc.explanation or exc), MOST_EXPLAINED))


def failed_step(error: str, log: Sequence[str]) -> str:
    """Return the error that a failed build step printed, in the form of pip or apt-get; else the engine's message."""
    lines = _COLOURS.sub("", "".join(log)).splitlines()
    errors = [line for line in lines if line.startswith(("ERROR: ", "E: "))] if "non-zero code" in error else []
    return shorten(one_line(errors[-1]), MOST_EXPLAINED) if errors else error.strip()


class DockerConnection:
    """A connection to the engine that the docker CLI would use. `timeout` is the limit for one answer, in seconds."""

    def __init__(self, timeout: int) -> None:
        self._timeout = timeout
        self._lock = threading.Lock()
        self._held: tuple[int, docker.DockerClient] | None = None  # the client, and the process that made it
        self._patient_client: docker.DockerClient | None = None
        self._environ: Mapping[str, str] = {}
        self._engine: EngineName = "Docker"

    @property
    def is_local(self) -> bool:
        """Return whether the engine is reached over a unix socket, and so can access this machine's files."""
        return str(self.api().base_url).startswith(_LOCAL)

    @property
    def engine(self) -> EngineName:
        """The name of the engine, as it reports it."""
        self.api()
        return self._engine

    def api(self, *, is_patient: bool = False) -> Any:
        """The SDK's low-level client; one per process, since a forked child must not share its parent's connections.

        With `is_patient`, the client for requests that may take up to BUILD_TIMEOUT.
        """
        client = self._connected()
        if not is_patient:
            return client.api
        with self._lock:
            if self._patient_client is None:
                self._patient_client = _client(BUILD_TIMEOUT, client.api.api_version, self._environ)
            return self._patient_client.api

    def new_client(self, timeout: int) -> docker.DockerClient:
        """Return another client, which need not ask for the engine's version again."""
        version = self.api().api_version
        return _client(timeout, version, self._environ)

    def _connected(self) -> docker.DockerClient:
        """Return the client of this process. Threads without one each ask the engine: none waits for another's wait."""
        held = self._held
        if held and held[0] == os.getpid():
            return held[1]
        client = self._connect()
        with self._lock:
            held = self._held
            if held and held[0] == os.getpid():
                client.close()
                return held[1]
            self._held, self._patient_client = (os.getpid(), client), None
            return client

    def _connect(self) -> docker.DockerClient:
        self._environ = environment()
        try:
            asking = _client(self._timeout, "1.41", self._environ)
            with contextlib.closing(asking):  # this one request names no version
                return _client(self._timeout, self._version(asking.api), self._environ)
        except ValueError as exc:  # the SDK does not translate it for an address that it cannot parse
            raise EngineUnavailable(f"The engine's address is not usable ({exc}). {START_ENGINE_HINT}") from exc

    def _version(self, api: Any) -> str:
        """Return the version of the engine's API from the headers of an answer; a version request costs more.

        The headers also name the engine.
        """
        answered = api.get(f"{api.base_url}/_ping", timeout=self._timeout)
        self._engine = engine_name(answered.headers)
        return str(answered.headers.get("Api-Version") or api.version(api_version=False)["ApiVersion"])


class _UnixConnection(urllib3.connection.HTTPConnection):
    """A connection to a unix socket, which is closed if the engine does not answer: the SDK's own stays open."""

    def __init__(self, path: str, **options: Any) -> None:
        super().__init__(**options)
        self._path = path

    def connect(self) -> None:
        with contextlib.ExitStack() as undo:
            sock = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            sock.settimeout(self.timeout)
            sock.connect(self._path)
            undo.pop_all()
        self.sock = sock


class _UnixAdapter(requests.adapters.HTTPAdapter):
    """One connection pool for all URLs.

    The SDK's own adapter has a pool for each of the last 25 URLs. A sandbox uses several URLs once, and a request fails
    if other threads push its URL out of these 25 before it is sent.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._pool = urllib3.HTTPConnectionPool("localhost", maxsize=MAX_CONNECTIONS)
        self._pool.ConnectionCls = partial(_UnixConnection, path)  # type: ignore[assignment]

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> urllib3.HTTPConnectionPool:
        return self._pool

    def close(self) -> None:
        super().close()
        self._pool.close()


def _client(timeout: int, version: str, environ: Mapping[str, str]) -> docker.DockerClient:
    """Return a client that reads the environment only here, not at each request, when other threads may write it.

    REQUESTS_CA_BUNDLE must not replace the engine's own authority in DOCKER_CERT_PATH.
    """
    client = docker.DockerClient.from_env(timeout=timeout, version=version, use_ssh_client=True, environment=environ)
    client.api.trust_env = False
    if client.api.base_url.startswith(("http://", "https://")):
        client.api.proxies = requests.utils.get_environ_proxies(client.api.base_url)
    adapter = client.api.get_adapter(client.api.base_url)
    if isinstance(adapter, docker.transport.UnixHTTPAdapter):
        client.api.mount("http+docker://", _UnixAdapter(adapter.socket_path))
    return client


def _root_cause(exc: BaseException) -> BaseException:
    """Return the innermost exception, which the SDK wraps in three layers."""
    while (inner := exc.__cause__ or exc.__context__) is not None:
        exc = inner
    return exc
