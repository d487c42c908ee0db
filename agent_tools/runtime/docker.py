"""The Docker engine, on the docker SDK: the only file that knows it, and where its exceptions are translated."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import docker.errors
import requests

import docker
from agent_tools.errors import EngineError, EngineUnavailable, ImageBuildError, SandboxStartError
from agent_tools.runtime.engine import Guest, Sandbox, SandboxSpec
from agent_tools.runtime.payload import container_config, local_log
from agent_tools.runtime.shipped import shipped
from agent_tools.runtime.stdio import AttachedStdio

FIXED_GUEST = (10001, 10001)  # the guest's uid and gid where the caller is root
DIAGNOSIS_SECONDS = 5  # how long a sandbox that did not come up is given to say why
_LOCAL = (
    "http+docker://localhost",
    "http+docker://localunixsocket",
    "http+unix://",
)  # the SDK's names for a unix socket
LOG_TAIL = 2048  # bytes of a failed sandbox's output shown
START_ENGINE_HINT = (
    "Start Docker (systemctl start docker, or Docker Desktop), or set DOCKER_HOST to an engine that runs. "
    "On Debian and Ubuntu: apt-get install docker.io. `agent-tools doctor` shows what is wrong."
)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turn the SDK's exceptions into ours; as a decorator, or around the body of a generator."""
    try:
        yield
    except docker.errors.APIError as exc:
        raise EngineError(f"The Docker engine refused: {exc.explanation or exc}") from exc
    except (docker.errors.DockerException, requests.RequestException, OSError) as exc:
        raise EngineUnavailable(f"No Docker engine answers ({_root_cause(exc)}). {START_ENGINE_HINT}") from exc


@dataclass(frozen=True)
class EngineInfo:
    """What `docker info` and `docker version` say that matters here."""

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


class DockerEngine:
    """Runs sandboxes and builds images on a Docker engine, found as the docker CLI finds it (DOCKER_HOST)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: docker.DockerClient | None = None
        self._client_pid = 0
        self._info: EngineInfo | None = None

    # -- the Engine protocol ------------------------------------------------------------------------------------------

    @_translated()
    def guest(self) -> Guest:
        """The caller's own ids; a fixed unprivileged pair for root; the mapped root of a rootless engine."""
        caller = (os.getuid(), os.getgid())
        info = self.info()
        is_local = self._api().base_url.startswith(_LOCAL)
        shares = {"shares_sockets": is_local and not info.is_desktop, "shares_files": is_local}
        if info.is_rootless and os.getuid() != 0:
            return Guest(inside=(0, 0), outside=caller, **shares)  # uid 0 in there is the caller out here
        ids = FIXED_GUEST if os.getuid() == 0 else caller
        return Guest(inside=ids, outside=ids, **shares)

    @_translated()
    def start(self, spec: SandboxSpec) -> Sandbox:
        """Create and start a sandbox.

        Raises:
            SandboxStartError: the engine does not have what the spec asks for.
        """
        sandbox = self._create(spec)
        with contextlib.ExitStack() as undo:
            undo.callback(self.remove, sandbox)
            try:
                if spec.run_dir is None:  # before the start, so that no output is missed
                    stdio = self._attach(sandbox)
                    undo.callback(stdio.close)
                    sandbox = Sandbox(sandbox.id, stdio)
                self._api().start(sandbox.id)
            except docker.errors.APIError as exc:
                raise SandboxStartError(f"The Docker engine cannot start the sandbox: {_explain(exc, spec)}") from exc
            undo.pop_all()
        return sandbox

    def _attach(self, sandbox: Sandbox) -> AttachedStdio:
        """Its stdin and stdout, on a connection of its own."""
        with contextlib.ExitStack() as undo:
            client = self._new_client(timeout=60)
            undo.callback(client.close)
            everything = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            return AttachedStdio(client.api.attach_socket(sandbox.id, params=everything), undo.pop_all().close)

    def _create(self, spec: SandboxSpec, for_diagnosis: bool = False) -> Sandbox:
        config = container_config(spec, shipped("docker/seccomp.json").read_text())
        if for_diagnosis:
            config["HostConfig"].update(AutoRemove=False, LogConfig=local_log(spec.isolation))
        try:
            return Sandbox(self._api().create_container_from_config(config)["Id"])
        except docker.errors.ImageNotFound as exc:
            raise SandboxStartError(f"The image {spec.image} is missing. Run `agent-tools image build`.") from exc
        except docker.errors.APIError as exc:
            raise SandboxStartError(f"The Docker engine cannot make the sandbox: {_explain(exc, spec)}") from exc

    @_translated()
    def remove(self, sandbox: Sandbox) -> None:
        """Kill and remove at once."""
        try:
            self._api().remove_container(sandbox.id, force=True, v=True)
        except docker.errors.NotFound:
            pass
        except docker.errors.APIError as exc:
            if exc.status_code != 409:  # 409: its removal is already in progress
                raise

    @_translated()
    def last_words(self, sandbox: Sandbox, spec: SandboxSpec) -> str | None:
        """None while the container runs. One that ended is removed with its log, so a second one is asked to fail."""
        try:
            if self._api().inspect_container(sandbox.id)["State"]["Running"]:
                return None
        except docker.errors.NotFound:
            pass
        again = self._create(spec, for_diagnosis=True)
        try:
            self._api().start(again.id)
            with contextlib.suppress(requests.RequestException):
                self._api().wait(again.id, timeout=DIAGNOSIS_SECONDS)
            output: bytes = self._api().logs(again.id, tail=40)
            return output[-LOG_TAIL:].decode("utf-8", "replace")
        finally:
            self.remove(again)

    @_translated()
    def strays(self, host: Mapping[str, str]) -> list[tuple[Sandbox, Mapping[str, str]]]:
        """Containers in any state whose labels contain `host`."""
        filters = {"label": [f"{name}={value}" for name, value in host.items()]}
        found = self._api().containers(all=True, filters=filters)
        return [(Sandbox(each["Id"]), each.get("Labels") or {}) for each in found]

    # -- images -------------------------------------------------------------------------------------------------------

    @_translated()
    def has_image(self, tag: str) -> bool:
        """Whether the engine has the image."""
        try:
            self._api().inspect_image(tag)
        except docker.errors.ImageNotFound:
            return False
        return True

    @_translated()
    def image_facts(self, tag: str) -> dict[str, Any]:
        """`docker image inspect` of one image."""
        facts: dict[str, Any] = self._api().inspect_image(tag)
        return facts

    @_translated()
    def images(self, repository: str) -> list[dict[str, Any]]:
        """All images of one repository, with `RepoTags` and `Size` (bytes)."""
        found: list[dict[str, Any]] = self._api().images(name=repository)
        return found

    @_translated()
    def remove_image(self, tag: str) -> None:
        """Remove an image; containers that use it make this an error."""
        self._api().remove_image(tag)

    def pull(self, tag: str) -> Iterator[str]:
        """Pull an image, yielding the engine's progress lines.

        Raises:
            EngineError: no registry answers, or it does not have the image.
        """
        with _translated():
            for line in self._api(timeout=None).pull(tag, stream=True, decode=True):
                if "error" in line:
                    raise EngineError(f"{tag} could not be pulled: {line['error']}")
                yield str(line.get("status", ""))

    def build(self, context: BinaryIO, tag: str, arguments: Mapping[str, str]) -> Iterator[str]:
        """Build an image from a tar of its context, yielding output lines.

        Raises:
            ImageBuildError: a step failed; carries the end of the log.
        """
        log: list[str] = []
        options = {"custom_context": True, "rm": True, "forcerm": True, "decode": True, "buildargs": dict(arguments)}
        with _translated():
            for line in self._api(timeout=None).build(fileobj=context, tag=tag, **options):
                if "error" in line:
                    tail = "".join(log)[-8192:]
                    raise ImageBuildError(f"The image {tag} could not be built: {line['error'].strip()}", tail)
                log.append(str(line.get("stream", "")))
                yield log[-1]

    @_translated()
    def import_image(self, archive: Path, repository: str, tag: str) -> None:
        """Make an image of one layer from a tar of its file system."""
        self._api(timeout=None).import_image_from_file(str(archive), repository, tag)

    @_translated()
    def prune_build_stage(self, label: str) -> None:
        """Remove the untagged images a build left that carry `label`."""
        self._api(timeout=None).prune_images(filters={"dangling": True, "label": [label]})

    # -- facts --------------------------------------------------------------------------------------------------------

    @_translated()
    def info(self) -> EngineInfo:
        """The engine's facts, asked once."""
        if self._info is None:
            api = self._api()
            info = api.info()
            options = " ".join(info.get("SecurityOptions") or [])
            self._info = EngineInfo(
                version=info.get("ServerVersion", "?"),
                api_version=api.api_version,
                runtimes=tuple(info.get("Runtimes") or {}),
                is_rootless="name=rootless" in options,
                has_userns_remap="name=userns" in options,
                cgroup_version=str(info.get("CgroupVersion", "?")),
                storage_driver=info.get("Driver", "?"),
                kernel=info.get("KernelVersion", "?"),
                memory_limited=bool(info.get("MemoryLimit")),
                is_desktop=info.get("OperatingSystem") == "Docker Desktop",
            )
        return self._info

    @_translated()
    def inspect(self, sandbox: Sandbox) -> dict[str, Any]:
        """`docker inspect` of one sandbox."""
        facts: dict[str, Any] = self._api().inspect_container(sandbox.id)
        return facts

    @_translated()
    def memory_usage(self, sandbox: Sandbox) -> int:
        """Bytes of memory the sandbox uses now, its page cache not counted."""
        stats = self._api().stats(sandbox.id, stream=False, one_shot=True)["memory_stats"]
        cache = stats.get("stats", {}).get("total_inactive_file", stats.get("stats", {}).get("inactive_file", 0))
        return int(stats.get("usage", 0)) - int(cache)

    # -- plumbing -----------------------------------------------------------------------------------------------------

    def _api(self, timeout: float | None = 60.0) -> Any:
        """The SDK's low-level client; one per process, since a forked child must not share its parent's connections."""
        with self._lock:
            if self._client is None or self._client_pid != os.getpid():
                self._client = _client(timeout=60, version=_client(60, "1.41").version(api_version=False)["ApiVersion"])
                self._client_pid = os.getpid()
        return self._client.api if timeout is not None else self._new_client(timeout=3600).api

    def _new_client(self, timeout: int) -> docker.DockerClient:
        """A client of its own, which need not ask for the engine's version again."""
        return _client(timeout, self._api().api_version)


def _client(timeout: int, version: str) -> docker.DockerClient:
    """A client that believes the engine's own authority: REQUESTS_CA_BUNDLE would else replace DOCKER_CERT_PATH's."""
    client = docker.DockerClient.from_env(timeout=timeout, version=version, use_ssh_client=True)
    if isinstance(client.api.verify, str):
        client.api.trust_env = False
    return client


def _root_cause(exc: BaseException) -> str:
    """The innermost reason, which the SDK wraps in three layers."""
    while (inner := exc.__cause__ or exc.__context__) is not None:
        exc = inner
    return str(getattr(exc, "strerror", None) or exc)


def _explain(exc: docker.errors.APIError, spec: SandboxSpec) -> str:
    text = str(exc.explanation or exc)
    if spec.isolation.runtime and "runtime" in text.lower():
        return f"{text}. Install the runtime {spec.isolation.runtime!r} and add it to the engine's daemon.json."
    if "bind source path does not exist" in text or "invalid mount config" in text:
        return f"{text}. The engine does not see this machine's files (a remote engine, or a VM)."
    return text
