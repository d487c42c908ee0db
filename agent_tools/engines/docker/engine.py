"""The Docker engine, on the docker SDK."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import docker.errors
import requests

from agent_tools.engines.context import REPOSITORY
from agent_tools.engines.docker.attached_stdio import AttachedStdio, OutputFrames, conversation, response_of, socket_of
from agent_tools.engines.docker.connection import DockerConnection, explained, failed_step, translated
from agent_tools.engines.docker.engine_info import EngineInfo
from agent_tools.engines.docker.image_archive import plain_name
from agent_tools.engines.docker.payload import SHARES, container_config, local_log
from agent_tools.engines.docker.podman_form import cgroup_v1_config, limit_tcp, podman_config, processes_of_user
from agent_tools.engines.docker.unfinished import Unfinished
from agent_tools.engines.engine import EngineContainer, SandboxSpec
from agent_tools.engines.guest import Guest
from agent_tools.engines.oci_runtime import chosen, kind_of
from agent_tools.engines.package_data import shipped
from agent_tools.engines.volumes import Volume
from agent_tools.errors import EngineError, ImageBuildError, SandboxStartError
from agent_tools.machine.deleted_files import family
from agent_tools.machine.guest_ids import GUEST_UIDS, GuestIds
from agent_tools.machine.machine import IS_LINUX
from agent_tools.machine.owner import NAME_LABEL
from agent_tools.text import one_line, shorten

DIAGNOSIS_SECONDS = 5  # seconds to wait for the output of a sandbox that did not start
CONFLICT = 409  # HTTP status of an engine that is already doing this
_LOOPBACK = re.compile(r"://([^/@]*@)?(localhost|127\.[0-9.]+|\[::1\])(?=[:/]|$)")
READONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger", "/sys/fs/cgroup")
"""On an engine that maps users: its default, and its cgroup, which it leaves writable. No mapping is used, since mapped
ids own neither work_dir nor files that the caller may read."""
LOG_TAIL = 2048  # bytes of a failed sandbox's output shown


class DockerEngine:
    """Runs sandboxes and builds images on the Docker engine that the docker CLI would use.

    `timeout` is the limit for one answer, in seconds; pulls and builds have an hour.
    """

    def __init__(self, timeout: int = 60) -> None:
        self.connection = DockerConnection(timeout)
        self._info: EngineInfo | None = None
        self._unfinished = Unfinished(self.connection)
        self._guest_ids = GuestIds()
        self.restore_image: Callable[[str], bool] = lambda _tag: False
        """Tries to restore a removed image; returns whether it succeeded."""

    # -- the Engine protocol ------------------------------------------------------------------------------------------

    @translated()
    def guest(self, work_dir: Path | None = None) -> Guest:
        """Return the caller's ids; for root, the folder's unprivileged ids; for a rootless engine, its mapped root."""
        caller = (os.getuid(), os.getgid())
        info = self.info()
        is_local = self.connection.is_local
        is_here = is_local and IS_LINUX and not info.is_desktop  # elsewhere the engine runs in a virtual machine
        shares_files = is_here or (is_local and info.is_desktop)
        facts: dict[str, Any] = {"shares_sockets": is_here, "shares_files": shares_files, "runtimes": info.runtimes}
        if info.is_rootless and os.getuid() != 0:
            return Guest((0, 0), caller, **facts)  # uid 0 in the container is the caller on the host
        if os.getuid() == 0:
            uid = self._guest_ids.of(work_dir) if work_dir else GUEST_UIDS[0]
            caller = (uid, uid)
        return Guest(caller, caller, **facts)

    @translated()
    def start(self, spec: SandboxSpec) -> EngineContainer:
        """Create and start a sandbox.

        Raises:
            SandboxStartError: the engine lacks something that the spec asks for.
        """
        self._unfinished.remove()
        self._check_volumes(spec.volumes)
        runtime = chosen(spec.isolation, self.info().runtimes) or ""
        can_promote = self.info().changes_shares and kind_of(runtime) != "gvisor"  # runsc has no `update`
        spec = replace(spec, is_ahead=spec.is_ahead and can_promote)
        with self._unfinished.made(_name(spec)) as note_created:
            sandbox = self._create(spec)
            note_created()
            sandbox = self._begun(sandbox, spec)
        return replace(sandbox, promote=partial(self._promote, sandbox.id)) if spec.is_ahead else sandbox

    def _begun(self, sandbox: EngineContainer, spec: SandboxSpec) -> EngineContainer:
        """Start a sandbox that was created; return it with its stdio and pid."""
        with contextlib.ExitStack() as undo:
            try:
                if spec.run_dir is None:  # before the start, so that no output is missed
                    stdio = self._attach(sandbox)
                    undo.callback(stdio.close)
                    sandbox = replace(sandbox, stdio=stdio)
                self.connection.api().start(sandbox.id)
                if spec.work_dir is not None:
                    sandbox = replace(sandbox, pid=self._pid(sandbox))
                if self._is_cgroup_v1():  # before any code runs
                    limit_tcp(sandbox.pid or self._pid(sandbox))
            except docker.errors.APIError as exc:
                self._give_up(sandbox, spec)
                raise SandboxStartError(f"The engine cannot start the sandbox: {_explain(exc, spec)}") from exc
            except BaseException:
                self._unfinished.doubt(_name(spec))
                raise
            undo.pop_all()
        return sandbox

    def _give_up(self, sandbox: EngineContainer, spec: SandboxSpec) -> None:
        """Remove a sandbox that the engine refused to start; later, if that fails."""
        try:
            self.remove(sandbox)
        except EngineError:
            self._unfinished.doubt(_name(spec))

    def _check_volumes(self, volumes: Sequence[Volume]) -> None:
        """Check that the engine has the volumes that it is to know by name: it would make a missing one.

        Raises:
            SandboxStartError: it has none of this name.
        """
        for each in volumes:
            try:
                _ = each.folder or self.connection.api().inspect_volume(each.source)
            except docker.errors.NotFound as exc:
                raise SandboxStartError(
                    f"Volume {each.name}: the engine has no volume {each.source!r}. Make it: docker volume create "
                    f"{each.source}. If a folder is meant, give its absolute path."
                ) from exc

    @translated()
    def _promote(self, id_: str) -> None:
        self.connection.api().update_container(id_, cpu_shares=SHARES)

    def _is_cgroup_v1(self) -> bool:
        return self.info().cgroup_version == "1"

    def _pid(self, sandbox: EngineContainer) -> int:
        """Return the pid of PID 1; 0 if it ended at once, or if the engine runs in another PID namespace."""
        with contextlib.suppress(docker.errors.APIError, OSError):
            pid = int(self.connection.api().inspect_container(sandbox.id)["State"]["Pid"])
            said = (
                Path(f"/proc/{pid}/{name}").read_text() for name in ("cgroup", "mountinfo")
            )  # a cgroup, or no limits
            return pid if any(sandbox.id in words for words in said) else 0
        return 0

    def _attach(self, sandbox: EngineContainer) -> AttachedStdio:
        """Return the container's stdin and stdout, on a new connection."""
        with contextlib.ExitStack() as undo:
            client = self.connection.new_client(timeout=60)
            undo.callback(client.close)
            everything = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            return AttachedStdio(client.api.attach_socket(sandbox.id, params=everything), undo.pop_all().close)

    def _create(self, spec: SandboxSpec, for_diagnosis: bool = False) -> EngineContainer:
        config = container_config(spec, shipped("docker/seccomp.json").read_text())
        if for_diagnosis:
            config["HostConfig"].update(AutoRemove=False, LogConfig=local_log(spec.isolation))
        if self.info().has_userns_remap:
            config["HostConfig"].update(UsernsMode="host", ReadonlyPaths=list(READONLY_PATHS))
        if self._is_cgroup_v1():
            config = cgroup_v1_config(config, self.info().kernel)
        if self.connection.engine == "Podman":
            if config["HostConfig"].get("Runtime") in self.info().runtimes:
                del config["HostConfig"]["Runtime"]  # its one runtime
            config = podman_config(config, shipped("docker"), processes_of_user())
        try:
            return self._create_from(config, spec)
        except docker.errors.ImageNotFound as exc:
            if self.restore_image(spec.image):
                return self._create_from(config, spec)
            how = "Run `agent-tools image build`." if spec.image.startswith(REPOSITORY) else "Pull it, or build it."
            raise SandboxStartError(f"The image {spec.image} is missing. {how}") from exc

    def _create_from(self, config: dict[str, Any], spec: SandboxSpec) -> EngineContainer:
        try:
            return EngineContainer(self.connection.api().create_container_from_config(config)["Id"])
        except docker.errors.ImageNotFound:
            raise
        except docker.errors.APIError as exc:
            raise SandboxStartError(f"The engine cannot make the sandbox: {_explain(exc, spec)}") from exc
        except BaseException:
            self._unfinished.doubt(_name(spec))
            raise

    @translated()
    def remove(self, sandbox: EngineContainer) -> None:
        """Kill and remove at once."""
        try:
            self.connection.api().remove_container(sandbox.id, force=True, v=True)
        except docker.errors.NotFound:
            pass
        except docker.errors.APIError as exc:
            if exc.status_code != CONFLICT:  # another removal is in progress
                raise

    @translated()
    def last_words(self, sandbox: EngineContainer, spec: SandboxSpec) -> str | None:
        """Return the output of a container that ended at its start; None while it runs.

        An ended container is removed with its log, so a second one is started to fail in the same way.
        """
        try:
            if self.connection.api().inspect_container(sandbox.id)["State"]["Running"]:
                return None
        except docker.errors.NotFound:
            pass
        with self._unfinished.made(_name(spec)) as note_created:
            again = self._create(spec, for_diagnosis=True)
            note_created()
            try:
                self.connection.api().start(again.id)
                with contextlib.suppress(requests.RequestException):
                    self.connection.api().wait(again.id, timeout=DIAGNOSIS_SECONDS)
                output: bytes = self.connection.api().logs(again.id, tail=40)
                return output[-LOG_TAIL:].decode("utf-8", "replace")
            finally:
                self.remove(again)

    @translated()
    def strays(self, host: Mapping[str, str]) -> list[tuple[EngineContainer, Mapping[str, str]]]:
        """Return the containers, in any state, whose labels contain `host`."""
        filters = {"label": [f"{name}={value}" for name, value in host.items()]}
        found = self.connection.api().containers(all=True, filters=filters)
        return [(EngineContainer(each["Id"]), each.get("Labels") or {}) for each in found]

    # -- images -------------------------------------------------------------------------------------------------------

    @translated()
    def has_image(self, tag: str) -> bool:
        """Return whether the engine has the image."""
        try:
            self.connection.api().inspect_image(tag)
        except docker.errors.ImageNotFound:
            return False
        return True

    @translated()
    def image_facts(self, tag: str) -> dict[str, Any]:
        """`docker image inspect` of one image."""
        facts: dict[str, Any] = self.connection.api().inspect_image(tag)
        return facts

    @translated()
    def images(self, repository: str) -> list[dict[str, Any]]:
        """Return all images of one repository, with `Size` (bytes), and `RepoTags` without the registry Podman adds."""
        found: list[dict[str, Any]] = self.connection.api().images(name=repository)
        return [{**each, "RepoTags": list(map(plain_name, each.get("RepoTags") or ()))} for each in found]

    @translated()
    def remove_image(self, tag: str) -> None:
        """Remove an image; an error if containers use it."""
        self.connection.api().remove_image(tag)

    def pull(self, tag: str) -> Iterator[str]:
        """Pull an image, yielding the engine's progress lines, which begin with the layer.

        Raises:
            EngineError: the registry does not answer, or does not have the image.
        """
        with translated():
            for line in self.connection.api(is_patient=True).pull(tag, stream=True, decode=True):
                if "error" in line:
                    raise EngineError(f"{tag} could not be pulled: {line['error']}")
                yield f"{line.get('id', 'image')}: {line.get('status', '')} {line.get('progress', '')}".rstrip()

    def build(self, context: BinaryIO, tag: str, arguments: Mapping[str, str]) -> Iterator[str]:
        """Build an image from a tar of its context, yielding output lines.

        Raises:
            ImageBuildError: a step failed; `log` has the end of the log.
        """
        log: list[str] = []
        options = {"custom_context": True, "rm": True, "forcerm": True, "decode": True, "buildargs": dict(arguments)}
        # so that the build reaches a proxy or index of this machine's network
        if any(map(_LOOPBACK.search, arguments.values())):
            options["network_mode"] = "host"
        with translated():
            for line in self.connection.api(is_patient=True).build(fileobj=context, tag=tag, **options):
                if "error" in line:
                    reason = failed_step(line["error"], log)
                    raise ImageBuildError(f"The image {tag} could not be built: {reason}", "".join(log)[-8192:])
                log.append(str(line.get("stream", "")))
                yield log[-1]

    @translated()
    def import_image(self, archive: Path, repository: str, tag: str) -> None:
        """Import an image of one layer from a tar of its file system."""
        self.connection.api(is_patient=True).import_image_from_file(str(archive), repository, tag)

    @translated()
    def tag_image(self, reference: str, tag: str) -> None:
        """Give an image another name, with repository and tag."""
        self.connection.api().tag(reference, *tag.rsplit(":", 1))

    def saved_image(self, tag: str) -> Iterator[bytes]:
        """Yield an image as an archive of its layers."""
        with translated():
            yield from self.connection.api(is_patient=True).get_image(tag)

    def load_image(self, archive: BinaryIO) -> Iterator[str]:
        """Load the images of an archive, yielding the engine's lines.

        Raises:
            EngineError: the engine cannot read it.
        """
        with translated():
            for line in self.connection.api(is_patient=True).load_image(archive):
                if "error" in line:
                    raise EngineError(f"The archive could not be loaded: {one_line(shorten(str(line['error']), 500))}")
                yield str(line.get("stream") or line.get("status", "")).strip()

    @translated()
    def prune_build_stage(self, label: str) -> None:
        """Remove untagged images with this label that a build left; return if another removal is in progress."""
        try:
            self.connection.api(is_patient=True).prune_images(filters={"dangling": True, "label": [label]})
        except docker.errors.APIError as exc:
            if exc.status_code != CONFLICT:
                raise

    # -- facts --------------------------------------------------------------------------------------------------------

    @translated()
    def info(self) -> EngineInfo:
        """Return the engine's facts, which are read once."""
        if self._info is None:
            api = self.connection.api()
            self._info = EngineInfo.of(api.info(), api.api_version, self.connection.engine)
        return self._info

    @translated()
    def bridge(self) -> str:
        """Return the interface of the engine's default network; '' if it has none or runs on another machine."""
        if not self.connection.is_local:
            return ""
        try:
            options = self.connection.api().inspect_network("bridge").get("Options") or {}
        except docker.errors.NotFound:
            return ""
        return str(options.get("com.docker.network.bridge.name", ""))

    @translated()
    def inspect(self, sandbox: EngineContainer) -> dict[str, Any]:
        """`docker inspect` of one sandbox."""
        facts: dict[str, Any] = self.connection.api().inspect_container(sandbox.id)
        return facts

    @translated()
    def processes(self, container: EngineContainer) -> list[int]:
        """Return the pids of a running container's processes on the engine's host.

        Podman's `top` is not used: it executes `ps` in the container, beside untrusted code, may be stopped, and
        returns the container's own pids; a rootless engine may not answer. The pids are then those of the container's
        first process and its descendants.
        """
        api = self.connection.api()
        first = int(api.inspect_container(container.id)["State"]["Pid"])
        if self.connection.engine == "Podman":
            return list(family(first))
        with contextlib.suppress(docker.errors.APIError, ValueError):
            named = [int(row[0]) for row in api.top(container.id, ps_args="-eo pid")["Processes"] or ()]
            if first in named:
                return named
        return list(family(first))

    @translated()
    def execute(
        self, container: EngineContainer, command: Sequence[str], data: bytes, seconds: float, most: int
    ) -> tuple[int | None, bytes]:
        """Run a command in another product's container, with `data` as its stdin (`docker exec`).

        Return the exit code, None if it has not ended after `seconds`, and the output, cut at `most` bytes.
        """
        api = self.connection.api()
        process = api.exec_create(container.id, list(command), stdin=True)["Id"]
        stream = api.exec_start(process, socket=True)
        with contextlib.closing(response_of(stream)):
            raw = conversation(socket_of(stream), data, seconds, 2 * most)
        exit_code: int | None = api.exec_inspect(process)["ExitCode"]
        return exit_code, OutputFrames().stdout_of(raw)[: most + 1]


def _name(spec: SandboxSpec) -> str:
    return spec.labels.get(NAME_LABEL, "")


def _explain(exc: docker.errors.APIError, spec: SandboxSpec) -> str:
    text = explained(exc)
    if spec.isolation.runtime and "runtime" in text.lower():
        return f"{text}. Install the runtime {spec.isolation.runtime!r} and add it to the engine's daemon.json."
    if "bind source path does not exist" in text or "invalid mount config" in text:
        return f"{text}. The engine cannot access this machine's files (a remote engine, or a VM)."
    return text
