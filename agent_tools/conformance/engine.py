"""Checks of an engine: its version and privileges, the limits it can set, and the bridge of its containers."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agent_tools.conformance.facts import (
    CATEGORIES,
    MOST_BYTES,
    PRIVILEGES,
    Finding,
    claimed_findings,
    one_line,
    program,
    read_facts,
    read_text,
)
from agent_tools.conformance.gvisor import explained
from agent_tools.conformance.host import host_findings
from agent_tools.engines.docker.connection import EngineInfo
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.docker.payload import EngineName
from agent_tools.engines.engine import Container, Isolation
from agent_tools.engines.oci_runtime import INSTALL_GVISOR, kind_of
from agent_tools.engines.volumes import Volume
from agent_tools.errors import EngineError
from agent_tools.limits import Limits
from agent_tools.machine.removal import remove_tree
from agent_tools.runtime.files.work_dir import prepare_work_dir
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.session.session import Session

# Probes a fresh sandbox, or any running container, and returns all findings by category.

SECONDS = 60.0  # for the code inside, which ends itself before
OURS = "agent_tools.owner"  # a label of every sandbox of ours
PYTHONS = ("python3", "python")
_CANNOT_START = (126, 127)  # exit codes that the engine gives for a program it cannot start


@dataclass(frozen=True)
class Survey:
    """The findings on one sandbox or container."""

    target: str
    findings: tuple[Finding, ...]
    note: str = ""
    """The reason why findings from inside are missing; '' if they are not."""

    @property
    def is_open(self) -> bool:
        """True if a promise of the default sandbox is broken."""
        return any(finding.breaks_a_promise for finding in self.findings)


def survey_sandbox(
    engine: DockerEngine, image: str, runtime: str | None = None, volumes: tuple[Volume, ...] = ()
) -> Survey:
    """Start a sandbox with the default options, probe it, and attack its PID 1; both run as user code.

    `runtime` is an OCI runtime other than the engine's own choice, such as 'runsc'. The sandbox has these volumes.

    Raises:
        EngineError: no sandbox could be started.
    """
    with _temporary_folder() as folder:
        work_dir = prepare_work_dir(folder, engine.guest(folder))
        spec = SessionSpec(image, work_dir, Isolation(runtime=runtime), Limits(), volumes=volumes)
        with closing(Session(engine, spec)) as session:
            execution = session.run(_as_user_code(), SECONDS)
            sandbox = session.sandbox
            if sandbox is None or not execution.stdout:
                raise EngineError(f"The probe could not run in the sandbox: {one_line(execution.stderr)}")
            settings = engine.inspect(sandbox)
            facts = read_facts(settings, engine.processes(sandbox))
            session.run("import os, signal\nos.kill(1, signal.SIGKILL)", SECONDS)
            init = _init_finding(_is_running(engine, sandbox))
    claims = claimed_findings(execution.stdout.encode("utf-8", "replace"))
    target = "a sandbox with the default options" + (f" under {runtime}" if runtime else "")
    target += f" and the volumes {', '.join(each.name for each in volumes)}" if volumes else ""
    found = [*host_findings(facts, engine.info().name), init, *claims]
    return Survey(target, _sorted(_explained(found, settings)))


def _explained(findings: list[Finding], settings: Mapping[str, Any]) -> list[Finding]:
    runtime = str((settings.get("HostConfig") or {}).get("Runtime", ""))
    return list(explained(findings)) if kind_of(runtime) == "gvisor" else findings


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Make a folder that the probe may fill, and remove it safely."""
    folder = Path(tempfile.mkdtemp(prefix="agent-tools-probe-"))
    try:
        yield folder
    finally:
        remove_tree(folder)


def _as_user_code() -> str:
    """Return user code that runs the probe in a process of its own, and leaves a child for the host to see."""
    return f"""import subprocess, sys
subprocess.Popen(["/bin/sleep", "60"])
sys.stdout.write(subprocess.run([sys.executable, "-I", "-c", {program()!r}], stdout=subprocess.PIPE, text=True).stdout)
"""


def _is_running(engine: DockerEngine, sandbox: Container) -> bool:
    """Return False also where the engine no longer knows the sandbox: it removes one whose PID 1 ended."""
    try:
        return bool(engine.inspect(sandbox)["State"]["Running"])
    except EngineError:
        return False


def _init_finding(survived: bool) -> Finding:
    words = "outlived SIGKILL from inside" if survived else "ended by SIGKILL from inside"
    return Finding(PRIVILEGES, "PID 1", "held" if survived else "open", words, "host")


def survey_container(engine: DockerEngine, name: str) -> Survey:
    """Probe a running container: its settings and processes from outside, and, with `docker exec`, from inside.

    A sandbox in use is checked only from outside: nothing is executed beside untrusted code.

    Raises:
        EngineError: there is no such container, or it does not run.
    """
    container = Container(name)
    settings = engine.inspect(container)
    if not settings["State"]["Running"]:
        raise EngineError(f"The container {name} does not run; start it first.")
    facts = read_facts(settings, engine.processes(container))
    said, note = _asked(engine, container, settings["Config"].get("Labels") or {})
    found = [*host_findings(facts, engine.info().name), *claimed_findings(said, note)]
    return Survey(f"container {settings['Name'].lstrip('/')}", _sorted(_explained(found, settings)), note)


def _asked(engine: DockerEngine, container: Container, labels: dict[str, str]) -> tuple[bytes | None, str]:
    """Return the answer of the code inside, or None and the reason."""
    if OURS in labels:
        return None, "not asked: a sandbox in use, in which nothing else is executed"
    code = program().encode()
    reader = f"import sys; exec(compile(sys.stdin.buffer.read({len(code)}), 'probe', 'exec'))"
    for python in PYTHONS:
        try:
            exit_code, said = engine.execute(container, [python, "-I", "-c", reader], code, SECONDS, MOST_BYTES)
        except EngineError as exc:
            return None, f"not asked: {exc}"
        if exit_code not in _CANNOT_START:
            return said, "" if said else "the probe ended without an answer"
    return None, "not asked: the container has no Python on its PATH"


def _sorted(findings: list[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: CATEGORIES.index(finding.category)))


OLDEST_ENGINE: Mapping[EngineName, tuple[int, int]] = {"Docker": (20, 10), "Podman": (4, 3)}
WELL_PATCHED_ENGINE: Mapping[EngineName, tuple[int, int]] = {"Docker": (25, 0), "Podman": (5, 0)}


@dataclass(frozen=True)
class Check:
    """One fact with a verdict, and advice if the verdict is bad."""

    name: str
    verdict: Literal["ok", "warn", "fail"]
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Machine:
    """The part of this machine that an engine on it depends on.

    Attributes:
        core_pattern: where the kernel sends core dumps; see core(5).
        interfaces: the network interfaces; None unless an engine with privileges runs here and shares them.
    """

    core_pattern: str = ""
    interfaces: frozenset[str] | None = None


def read_machine(root: Path = Path("/")) -> Machine:
    """Read this machine's facts; what cannot be read is absent."""
    pid = read_text(root / "var/run/docker.pid").strip()
    has_engine = pid.isdecimal() and read_text(root / "proc" / pid / "comm").strip() == "dockerd"
    return Machine(
        core_pattern=read_text(root / "proc/sys/kernel/core_pattern").strip(),
        interfaces=frozenset(each.name for each in (root / "sys/class/net").glob("*")) if has_engine else None,
    )


def engine_checks(info: EngineInfo, bridge: str = "", machine: Machine | None = None) -> Iterator[Check]:
    """Yield the checks of an engine. `bridge` is the interface of its default network, or ''."""
    machine = machine or read_machine()
    yield _version(info)
    yield Check("kernel", "ok", info.kernel)
    yield _privileges(info)
    yield _runtimes(info)
    yield from (problem for find in _PROBLEMS if (problem := find(info, bridge, machine)))


def _version(info: EngineInfo) -> Check:
    version = tuple(int(part) for part in re.findall(r"\d+", info.version)[:2])
    oldest = OLDEST_ENGINE[info.name]
    if version < oldest:
        advice = f"{info.name} {oldest[0]}.{oldest[1]} or newer is needed."
        return Check("engine", "fail", f"{info.name} {info.version}", advice)
    found = f"{info.name} {info.version}, API {info.api_version}, cgroup v{info.cgroup_version}"
    if version < WELL_PATCHED_ENGINE[info.name]:
        advice = "Old: it may lack fixes of runc and the engine, unless its distribution carries them."
        return Check("engine", "warn", found, advice)
    return Check("engine", "ok", found)


def _runtimes(info: EngineInfo) -> Check:
    runtimes = info.runtimes or ("runc",)
    has_gvisor = any(kind_of(each) == "gvisor" for each in runtimes)
    advice = "" if has_gvisor else f"For isolation='gvisor', {INSTALL_GVISOR}."
    return Check("OCI runtimes", "ok", f"{', '.join(runtimes)} (default: {runtimes[0]})", advice)


def _privileges(info: EngineInfo) -> Check:
    if info.is_rootless:
        return Check("engine's privileges", "ok", "rootless")
    advice = "Whoever may use this engine is root here. A rootless one is safer: docs.docker.com/go/rootless"
    return Check("engine's privileges", "warn", "rootful", advice)


def _user_namespaces(info: EngineInfo, _: str, __: Machine) -> Check | None:
    if not info.has_userns_remap:
        return None
    found = "userns-remap, without sandboxes: their users are the caller's, or of no account"
    return Check("user namespaces", "ok", found)


def _memory_limits(info: EngineInfo, _: str, __: Machine) -> Check | None:
    if info.memory_limited:
        return None
    return Check("memory limits", "fail", "not supported", "Enable the memory cgroup on this host (or delegate it).")


def _core_dumps(_: EngineInfo, __: str, machine: Machine) -> Check | None:
    if not machine.core_pattern.startswith("|"):
        return None
    advice = "The core limit of 0 does not hold for pipes; see core(5)."
    return Check("core dumps", "warn", "piped to a host program", advice)


def _bridge(info: EngineInfo, bridge: str, machine: Machine) -> Check | None:
    """Return a failure if the engine's bridge no longer exists on this machine.

    A rootless engine, or one in a virtual machine, has its own interfaces, which this machine does not show.
    """
    has_own = info.is_rootless or info.is_desktop or machine.interfaces is None
    if not bridge or has_own or bridge in (machine.interfaces or ()):
        return None
    advice = (
        "Containers with a network, as every image build has, fail. Another engine may have deleted the interface "
        "(dockerd --bridge=none does). Restart this engine: systemctl restart docker"
    )
    return Check("engine's bridge", "fail", f"{bridge} is gone", advice)


_PROBLEMS: tuple[Callable[[EngineInfo, str, Machine], Check | None], ...] = (
    _user_namespaces,
    _memory_limits,
    _core_dumps,
    _bridge,
)
