"""`agent-tools doctor`: checks this machine, and with `--probe` attacks a sandbox."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import time
from collections.abc import Mapping

import click
from rich.console import Console
from rich.text import Text

from agent_tools import settings
from agent_tools.cli.pod_checks import cluster_checks
from agent_tools.cli.probe_table import probe
from agent_tools.conformance.engine import Check, engine_checks
from agent_tools.conformance.facts import read_facts
from agent_tools.conformance.findings import Finding
from agent_tools.conformance.host import host_findings
from agent_tools.engines import context
from agent_tools.engines.docker.connection import SEE_DOCTOR
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.oci_runtime import kind_of
from agent_tools.errors import AgentToolsError, EngineError, SandboxStartError
from agent_tools.extras import DISTRIBUTION
from agent_tools.runtime.engine_lookup import DOCKER, shared_runtime
from agent_tools.runtime.pool.pools import PoolState
from agent_tools.runtime.runtime import Runtime, docker_runtime
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.tools.code_interpreter import CodeInterpreter
from agent_tools.version import __version__

_STYLE_OF = {"ok": "green", "warn": "yellow", "fail": "red"}

MISSES: Mapping[str, str] = {
    "empty": "No sandbox was ready in time: is the engine slow?",
    "failed": "No sandbox could be started in advance.",
    "folder": "Folders beside the temporary ones cannot be renamed: are they on one file system?",
    "ended": "The sandbox ended before it was used: is memory short?",
}
"""What to do about each reason of a miss."""


@click.command()
@click.option("--probe", "is_probe", is_flag=True, help="Attack a fresh sandbox from inside, and show every check.")
@click.option("--container", metavar="ID_OR_NAME", help="With --probe: check this running container instead.")
@click.option("--runtime", help="With --probe: the OCI runtime of the fresh sandbox, such as runsc.")
@click.option("--volumes", metavar="NAME=FOLDER,...", help="With --probe: volumes that the fresh sandbox gets.")
@click.option("--json", "as_json", is_flag=True, help="With --probe: print JSON.")
def doctor(is_probe: bool, container: str | None, runtime: str | None, volumes: str | None, as_json: bool) -> None:
    """Check the engine, the image, and one real sandbox as the host sees it; print advice for each problem.

    Exit code 0 if no check failed (with --probe: if the default sandbox keeps every promise), else 1.
    """
    if container is not None and (runtime is not None or volumes is not None):
        raise click.UsageError("--runtime and --volumes are for a fresh sandbox; a container has its own.")
    if is_probe:
        sys.exit(0 if probe(container, as_json, runtime, volumes or "") else 1)
    if container is not None or runtime is not None or volumes is not None or as_json:
        raise click.UsageError("--container, --runtime, --volumes and --json go with --probe.")
    checks = [Check("python", "ok", f"{platform.python_version()}, agent_tools {__version__}"), *name_checks()]
    word = settings.engine()
    kind = word.partition("://")[0]
    checks += cluster_checks(word) if kind == "kubernetes" else _docker_checks() if kind == DOCKER else [_sandbox(word)]
    console = Console(highlight=False)
    for check in checks:  # not as a table, whose columns would cut addresses that people copy
        line = Text.assemble((f"{check.verdict:<5}", _STYLE_OF[check.verdict]), f"{check.name}: {check.found}")
        console.print(line, soft_wrap=True)
        if check.advice:
            console.print(Text(f"      {check.advice}"), soft_wrap=True)
    sys.exit(1 if any(check.verdict == "fail" for check in checks) else 0)


def name_checks() -> list[Check]:
    """Warn if another distribution with a similar name is installed."""
    try:
        found = importlib.metadata.version("agent-tools")
    except importlib.metadata.PackageNotFoundError:
        return []
    said = f"the package agent-tools {found} is installed, which belongs to another project"
    return [Check("package", "warn", said, f"pip uninstall agent-tools; this project is {DISTRIBUTION}")]


def _sandbox(word: str) -> Check:
    """Check one sandbox on an engine whose machines are elsewhere, such as Ray."""
    try:
        with Sandbox({"engine": word}) as sandbox:
            execution = sandbox.run_code("print(2 + 2)")
    except AgentToolsError as exc:
        return Check("sandbox", "fail", f"did not run on {word}", getattr(exc, "message", None) or str(exc))
    told = f"{execution.duration * 1000:.0f} ms after its start on {word}"
    return Check("first result", "ok" if execution.stdout == "4\n" else "fail", told)


def _docker_checks() -> list[Check]:
    checks: list[Check] = []
    engine = DockerEngine()
    try:
        checks += engine_checks(engine.info(), engine.bridge())
        checks += _image_and_sandbox(engine)
    except SandboxStartError as exc:
        checks.append(Check("sandbox", "fail", "did not start", str(exc)))
    except EngineError as exc:
        checks.append(Check("engine", "fail", "no answer", str(exc).removesuffix(SEE_DOCTOR)))
    except AgentToolsError as exc:
        checks.append(Check("sandbox", "fail", "did not run", getattr(exc, "message", None) or str(exc)))
    return checks


def _image_and_sandbox(engine: DockerEngine) -> list[Check]:
    tag = context.tag_for()
    if not engine.has_image(tag):
        return [Check("image", "warn", f"{tag} is missing", "agent-tools image build (or wait for the first use)")]
    with CodeInterpreter() as tool:
        execution = tool.run("print(2 + 2)")
        sandbox = tool.sandbox
        answered = execution.stdout == "4\n" and sandbox is not None
        checks = [
            Check("image", "ok", tag),
            Check("first result", "ok" if answered else "fail", f"{execution.duration * 1000:.0f} ms after start"),
        ]
        if sandbox:
            facts = read_facts(engine.inspect(sandbox), engine.processes(sandbox))
            checks += map(check_of, host_findings(facts, engine.info().name))
    walls = map(_runtime_check, engine.info().runtimes[1:])
    return [*checks, *filter(None, walls), _pool_check(docker_runtime())]


def _runtime_check(name: str) -> Check | None:
    """Start a sandbox under an OCI runtime with a kernel of its own; None for others."""
    kind = kind_of(name)
    if kind not in ("gvisor", "kata", "sysbox"):
        return None
    try:
        with CodeInterpreter(runtime=name) as tool:
            execution = tool.run("print(2 + 2)")
    except AgentToolsError as exc:
        return Check(f"runtime {name}", "warn", "no sandbox starts under it", getattr(exc, "message", None) or str(exc))
    works = execution.stdout == "4\n"
    return Check(f"runtime {name}", "ok" if works else "warn", f"{kind}: a sandbox {'runs' if works else 'fails'}")


def _pool_check(runtime: Runtime) -> Check:
    """Start a sandbox in a pool, and let a session use it."""
    with Sandbox({"pool": 1}, runtime=runtime) as sandbox:
        sandbox.prepare_pool(sandbox.options.limits.start_timeout)
        started = time.monotonic()
        sandbox.run_code("0")
        check = check_of_pool(runtime.pools, time.monotonic() - started)
    runtime.close_all()
    return check


def check_of_pool(state: PoolState, seconds: float) -> Check:
    """Return the check of a session that asked for a pre-warmed sandbox; `seconds` is the time to its first result."""
    if state.takes.get("hit"):
        return Check("pool", "ok", f"{seconds * 1000:.0f} ms from nothing to the first result")
    outcome = next(iter(state.takes), "empty")
    found = " ".join([f"missed: {outcome}", *state.failures])
    return Check("pool", "warn", found, f"{MISSES[outcome]} Sessions start cold, as without a pool.")


def check_of(finding: Finding) -> Check:
    """Return a finding as a check: a failure for a broken promise; a warning for an open or unknown one."""
    match finding.verdict:
        case "open" if not finding.is_promised:
            return Check(finding.name, "warn", finding.found, finding.advice)
        case "open":
            advice = "The sandbox promises otherwise. Do not run code you do not trust on this engine."
            return Check(finding.name, "fail", finding.found, advice)
        case "unknown":
            return Check(finding.name, "warn", finding.found, "Run doctor on the engine's own host.")
        case _:
            return Check(finding.name, "ok", finding.found)


@click.command()
def clean() -> None:
    """Remove sandboxes whose host process is gone, and their folders. Sandboxes in use are left alone."""
    removed = shared_runtime().sweep()
    for sandbox in removed:
        click.echo(f"removed {sandbox.id[:12]}")
    click.echo(f"{len(removed)} stray sandboxes removed")
