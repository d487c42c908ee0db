"""One process's connections to a Docker engine, and the docker SDK's exceptions as ours."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import requests

from agent_tools.errors import EngineError, EngineUnavailable
from agent_tools.runtime.docker.address import environment
from agent_tools.runtime.docker.dialect import EngineName, engine_name
from agent_tools.runtime.docker.sdk import docker
from agent_tools.text import one_line, shorten

SEE_DOCTOR = " `agent-tools doctor` shows what is wrong."
START_ENGINE_HINT = (
    "Start Docker (systemctl start docker, or Docker Desktop), or set DOCKER_HOST to an engine that runs, such as "
    "Podman's: unix:///run/user/<uid>/podman/podman.sock after systemctl --user start podman.socket. "
    f"On Debian and Ubuntu: apt-get install docker.io.{SEE_DOCTOR}"
)
USE_ENGINE_HINT = (
    "This user may not use the engine's socket: add the user to the group `docker` (usermod -aG docker <user>, then "
    "log in again), or set DOCKER_HOST to a rootless engine of one's own."
    f"{SEE_DOCTOR}"
)
BUSY_HINT = (
    "It accepts connections but does not answer: it may be busy, for example with loading an image. Try again in a "
    f"minute; if that does not help, restart the engine.{SEE_DOCTOR}"
)
ADDRESS_HINT = f"DOCKER_HOST is to begin with unix://, tcp:// or ssh://, or not to be set. {START_ENGINE_HINT}"
_NO_ADDRESS = "Invalid bind address"  # the SDK's words
PATIENCE = 3600  # seconds pulling and building may leave the client without an answer
MOST_EXPLAINED = 500  # characters of an engine's words in an error of ours
MAX_CONNECTIONS = 64  # to the engine, that are kept for the next request; more are made and closed again
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LOCAL = ("http+docker://localhost", "http+docker://localunixsocket", "http+unix://")  # the SDK's names for a socket


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn the SDK's exceptions into ours; as a decorator, or around the body of a generator."""
    try:
        yield
    except docker.errors.APIError as exc:
        raise EngineError(f"The engine refused: {explained(exc)}") from exc
    except (docker.errors.DockerException, requests.RequestException, OSError) as exc:
        cause = _root_cause(exc)
        reason = getattr(cause, "strerror", None) or cause
        hint = USE_ENGINE_HINT if isinstance(cause, PermissionError) else START_ENGINE_HINT
        hint = BUSY_HINT if isinstance(exc, requests.ReadTimeout) else hint
        hint = ADDRESS_HINT if _NO_ADDRESS in str(reason) else hint
        if "paramiko" in str(reason):
            raise EngineUnavailable("An engine over ssh needs more: pip install 'agent-tools-sandbox[ssh]'.") from exc
        raise EngineUnavailable(f"No engine answers ({reason}). {hint}") from exc


def explained(exc: docker.errors.APIError) -> str:
    """The engine's own words, in one line of bounded length: some repeat all that they were sent."""
    return one_line(shorten(str(exc.explanation or exc), MOST_EXPLAINED))


def failed_step(error: str, log: Sequence[str]) -> str:
    """Return what a failed step of a build printed as its error, as pip and apt-get begin theirs; else the engine's."""
    lines = _COLOURS.sub("", "".join(log)).splitlines()
    told = [line for line in lines if line.startswith(("ERROR: ", "E: "))] if "non-zero code" in error else []
    return shorten(one_line(told[-1]), MOST_EXPLAINED) if told else error.strip()


class DockerConnection:
    """Finds the engine as the docker CLI does (address.py). `timeout` is how many seconds one answer may take."""

    def __init__(self, timeout: int) -> None:
        self._timeout = timeout
        self._lock = threading.Lock()
        self._client: docker.DockerClient | None = None
        self._client_pid = 0
        self._environ: Mapping[str, str] = {}
        self._engine: EngineName = "Docker"

    @property
    def is_local(self) -> bool:
        """Return whether the engine is reached over a unix socket, and so sees this machine's files."""
        return str(self.api().base_url).startswith(_LOCAL)

    @property
    def engine(self) -> EngineName:
        """The engine that answers, by its own word."""
        self.api()
        return self._engine

    def api(self, *, is_patient: bool = False) -> Any:
        """The SDK's low-level client; one per process, since a forked child must not share its parent's connections."""
        with self._lock:
            if self._client is None or self._client_pid != os.getpid():
                self._client = self._connect()
                self._client_pid = os.getpid()
        return self.new_client(timeout=PATIENCE).api if is_patient else self._client.api

    def new_client(self, timeout: int) -> docker.DockerClient:
        """A client of its own, which need not ask for the engine's version again."""
        version = self.api().api_version
        return _client(timeout, version, self._environ)

    def _connect(self) -> docker.DockerClient:
        self._environ = environment()
        try:
            asking = _client(self._timeout, "1.41", self._environ)
            with contextlib.closing(asking):  # this one request names no version
                return _client(self._timeout, self._version(asking.api), self._environ)
        except ValueError as exc:  # the SDK's parts let it through for an address they cannot read
            raise EngineUnavailable(f"The engine's address is not usable ({exc}). {START_ENGINE_HINT}") from exc

    def _version(self, api: Any) -> str:
        """The version of the engine's API, from any answer's head: an engine that is asked for it asks others.

        The head says, too, which engine it is.
        """
        answered = api.get(f"{api.base_url}/_ping", timeout=self._timeout)
        self._engine = engine_name(answered.headers)
        return str(answered.headers.get("Api-Version") or api.version(api_version=False)["ApiVersion"])


class _Connection(docker.transport.unixconn.UnixHTTPConnection):
    """Closes its socket where nobody answers; the SDK's own leaves it lying about."""

    def connect(self) -> None:
        with contextlib.ExitStack() as undo:
            sock = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            sock.settimeout(self.timeout)
            sock.connect(self.unix_socket)
            undo.pop_all()
        self.sock = sock


class _Pool(docker.transport.unixconn.UnixHTTPConnectionPool):
    def _new_conn(self) -> Any:
        timeout: Any = self.timeout
        return _Connection(self.base_url, self.socket_path, timeout)


class _UnixAdapter(docker.transport.UnixHTTPAdapter):
    """Keeps connections for whatever is asked next.

    The SDK's own keeps some for each of the last 25 URLs, of which a sandbox has several that are asked once; and a
    request fails whose URL other threads push out of these 25 before it is sent.
    """

    def __init__(self, socket_path: str, timeout: int) -> None:
        super().__init__(socket_path, timeout)
        self._pool = _Pool("http+docker://engine", socket_path, timeout, maxsize=MAX_CONNECTIONS)

    def get_connection(self, url: str | bytes, proxies: Any = None) -> Any:
        return self._pool

    def close(self) -> None:
        super().close()
        self._pool.close()


def _client(timeout: int, version: str, environ: Mapping[str, str]) -> docker.DockerClient:
    """A client that reads the environment once, here: for each request it would read it while other threads write it.

    Nor is REQUESTS_CA_BUNDLE to replace the engine's own authority, DOCKER_CERT_PATH's.
    """
    client = docker.DockerClient.from_env(timeout=timeout, version=version, use_ssh_client=True, environment=environ)
    client.api.trust_env = False
    if client.api.base_url.startswith(("http://", "https://")):
        client.api.proxies = requests.utils.get_environ_proxies(client.api.base_url)
    adapter = client.api.get_adapter(client.api.base_url)
    if isinstance(adapter, docker.transport.UnixHTTPAdapter):
        client.api.mount("http+docker://", _UnixAdapter(adapter.socket_path, timeout))
    return client


def _root_cause(exc: BaseException) -> BaseException:
    """The innermost reason, which the SDK wraps in three layers."""
    while (inner := exc.__cause__ or exc.__context__) is not None:
        exc = inner
    return exc
