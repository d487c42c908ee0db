"""Probes a fresh sandbox, or any running container, and returns all findings by category."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_tools.conformance.facts import read_facts
from agent_tools.conformance.findings import (
    CATEGORIES,
    MOST_BYTES,
    PRIVILEGES,
    Finding,
    claimed_findings,
    one_line,
    program,
)
from agent_tools.conformance.gvisor import explained
from agent_tools.conformance.host import host_findings
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.engine import EngineContainer
from agent_tools.engines.isolation import Isolation
from agent_tools.engines.oci_runtime import kind_of
from agent_tools.engines.volumes import Volume
from agent_tools.errors import EngineError
from agent_tools.limits import Limits
from agent_tools.machine.removal import remove_tree
from agent_tools.runtime.files.temp_work_dir import make_temp_work_dir
from agent_tools.runtime.files.work_dir import prepare_work_dir
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.session.session import Session

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
            sandbox = session.container
            if sandbox is None or not execution.stdout:
                raise EngineError(f"The probe could not run in the sandbox: {one_line(execution.stderr)}")
            settings = engine.inspect(sandbox)
            facts = read_facts(settings, engine.processes(sandbox))
            session.run("import os, signal\nos.kill(1, signal.SIGKILL)", SECONDS)
            init = _init_finding(_is_running(engine, sandbox))
    claims = claimed_findings(execution.stdout.encode("utf-8", "replace"))
    target = "a sandbox with the default options" + (f" under {runtime}" if runtime else "")
    target += f" and the volumes {', '.join(each.name for each in volumes)}" if volumes else ""
    findings = [*host_findings(facts, engine.info().name), init, *claims]
    return Survey(target, _sorted(_explained(findings, settings)))


def _explained(findings: list[Finding], settings: Mapping[str, Any]) -> list[Finding]:
    runtime = str((settings.get("HostConfig") or {}).get("Runtime", ""))
    return list(explained(findings)) if kind_of(runtime) == "gvisor" else findings


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Make a folder that the probe may fill, and remove it safely."""
    folder = make_temp_work_dir()
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


def _is_running(engine: DockerEngine, sandbox: EngineContainer) -> bool:
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
    container = EngineContainer(name)
    settings = engine.inspect(container)
    if not settings["State"]["Running"]:
        raise EngineError(f"The container {name} does not run; start it first.")
    facts = read_facts(settings, engine.processes(container))
    said, note = _asked(engine, container, settings["Config"].get("Labels") or {})
    found = [*host_findings(facts, engine.info().name), *claimed_findings(said, note)]
    return Survey(f"container {settings['Name'].lstrip('/')}", _sorted(_explained(found, settings)), note)


def _asked(engine: DockerEngine, container: EngineContainer, labels: dict[str, str]) -> tuple[bytes | None, str]:
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
