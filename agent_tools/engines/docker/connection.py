"""One process's connections to a Docker engine, and the docker SDK's exceptions as ours."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import requests

from agent_tools import settings
from agent_tools.engines.docker.payload import EngineName, engine_name
from agent_tools.errors import EngineError, EngineUnavailable
from agent_tools.extras import pip_install
from agent_tools.text import one_line, shorten

# The docker SDK, without paramiko: that is for engines reached over ssh, and is a third of what the SDK imports.
#
# The SDK takes the class of its ssh adapter when it is imported; here it takes a function, which imports the class.

__all__ = ["docker"]

_SSH = "docker.transport.sshconn"


def _ssh_adapter(*args: Any, **kwargs: Any) -> Any:
    """An adapter for an engine reached over ssh."""
    try:
        from docker.transport.sshconn import SSHHTTPAdapter  # loads paramiko
    except ImportError as exc:
        raise NameError("SSHHTTPAdapter") from exc  # which the SDK takes for paramiko's not being there
    return SSHHTTPAdapter(*args, **kwargs)


def _without_ssh() -> ModuleType | None:
    """Put the function in the class's place, unless somebody else has imported the SDK."""
    if "docker" in sys.modules:
        return None
    stand_in = ModuleType(_SSH)
    stand_in.SSHHTTPAdapter = _ssh_adapter  # type: ignore[attr-defined]
    sys.modules[_SSH] = stand_in
    return stand_in


_stand_in = _without_ssh()
try:
    import docker.errors
    import docker.transport.unixconn

    import docker
finally:
    if _stand_in:
        del sys.modules[_SSH]


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
            raise EngineUnavailable(f"An engine over ssh needs more: {pip_install('ssh')}.") from exc
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


# The engine's address, where the docker CLI finds it: DOCKER_HOST, else the context that is in use.
#
# Format: https://docs.docker.com/engine/manage-resources/contexts/ (a folder for each, named by a digest of its name)


DEFAULT = "default"  # the context that is this machine's engine
_HINT = (
    "`docker context ls` lists those that are; `docker context use default`, or DOCKER_HOST, chooses another engine."
)


def environment() -> dict[str, str]:
    """Return the environment, in which DOCKER_HOST and what TLS needs are those of the context, if one is in use.

    Raises:
        EngineUnavailable: the context is not there, or has no address of an engine.
    """
    environ = settings.all_variables()
    folder = Path(environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker"))
    name = environ.get("DOCKER_CONTEXT") or _read(folder / "config.json").get("currentContext") or DEFAULT
    if environ.get("DOCKER_HOST") or name == DEFAULT:
        return environ
    contexts, digest = folder / "contexts", hashlib.sha256(str(name).encode()).hexdigest()
    endpoint = _docker_endpoint(_read(contexts / "meta" / digest / "meta.json"))
    if not endpoint:
        raise EngineUnavailable(f"The docker context {name!r:.80} is not there, or has no address. {_HINT}")
    environ |= {"DOCKER_HOST": endpoint["Host"], "DOCKER_CERT_PATH": "", "DOCKER_TLS_VERIFY": ""}
    certificates = contexts / "tls" / digest / "docker"
    if certificates.is_dir():
        is_verified = endpoint.get("SkipTLSVerify") is not True
        environ |= {"DOCKER_CERT_PATH": str(certificates), "DOCKER_TLS_VERIFY": "1" if is_verified else ""}
    return environ


def _docker_endpoint(context: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a context that is about Docker; nothing if it says no address."""
    endpoints = context.get("Endpoints")
    found = endpoints.get("docker") if isinstance(endpoints, dict) else None
    return found if isinstance(found, dict) and isinstance(found.get("Host"), str) and found["Host"] else {}


def _read(path: Path) -> dict[str, Any]:
    """Return a JSON object of a file; an empty one if there is none."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


# An engine about itself, as far as it matters here.


@dataclass(frozen=True)
class EngineInfo:
    """The answers of `docker info` and `docker version` that matter here.

    `runtimes` are those it knows; of Podman's the one it uses, since it names all that it could. `changes_shares`: it
    can give a container another share of the CPU while that runs.
    """

    version: str
    api_version: str
    runtimes: tuple[str, ...]
    is_rootless: bool
    has_userns_remap: bool
    cgroup_version: str
    storage_driver: str
    kernel: str
    memory_limited: bool
    is_desktop: bool = False
    name: EngineName = "Docker"
    changes_shares: bool = True

    @classmethod
    def of(cls, info: Mapping[str, Any], api_version: str, name: EngineName = "Docker") -> EngineInfo:
        """The facts in an answer of `docker info`."""
        options = " ".join(info.get("SecurityOptions") or [])
        is_rootless = "name=rootless" in options or bool(info.get("Rootless"))  # the latter is Podman's word
        cgroup_version = str(info.get("CgroupVersion", "?"))
        ignores_limits = name == "Podman" and is_rootless and cgroup_version == "1"  # though it says that it has them
        return cls(
            version=info.get("ServerVersion", "?"),
            api_version=api_version,
            runtimes=(info.get("DefaultRuntime", "?"),) if name == "Podman" else tuple(info.get("Runtimes") or {}),
            is_rootless=is_rootless,
            has_userns_remap="name=userns" in options,
            cgroup_version=cgroup_version,
            storage_driver=info.get("Driver", "?"),
            kernel=info.get("KernelVersion", "?"),
            memory_limited=bool(info.get("MemoryLimit")) and not ignores_limits,
            is_desktop=info.get("OperatingSystem") == "Docker Desktop",
            name=name,
            changes_shares=name == "Docker" and bool(info.get("CPUShares", True)),
        )
