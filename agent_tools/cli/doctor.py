"""`agent-tools doctor`: checks this machine, and with `--probe` attacks a sandbox."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_tools import settings
from agent_tools.cli.image import ensure_with_progress
from agent_tools.conformance.engine import Check, Survey, engine_checks, survey_container, survey_sandbox
from agent_tools.conformance.facts import CATEGORIES, VERDICTS, Finding, counts, read_facts
from agent_tools.conformance.host import host_findings
from agent_tools.engines import context
from agent_tools.engines.docker.connection import SEE_DOCTOR
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.kubernetes.answers import table, tables
from agent_tools.engines.kubernetes.pod import MANAGED_BY
from agent_tools.engines.oci_runtime import kind_of
from agent_tools.engines.volumes import read_volumes
from agent_tools.errors import AgentToolsError, EngineError, SandboxStartError
from agent_tools.extras import DISTRIBUTION
from agent_tools.runtime.engines import shared_runtime
from agent_tools.runtime.pool import PoolState
from agent_tools.runtime.runtime import Runtime, docker_runtime
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.tools.code_interpreter import CodeInterpreter
from agent_tools.version import __version__

if TYPE_CHECKING:
    from agent_tools.engines.kubernetes.engine import KubernetesEngine
    from agent_tools.runtime.runtime import Runtime


# The checks of `agent-tools doctor` on an engine of pods: cluster, rights, namespace, and one real sandbox.

RIGHTS = (
    *(("", "pods", verb) for verb in ("create", "get", "list", "watch", "delete")),
    ("", "pods/exec", "create"),
    ("", "pods/exec", "get"),
    ("", "pods/log", "get"),
)
"""What the service account must be allowed: API groups, resources, verbs."""
POOL_RIGHTS = (
    *(("extensions.agents.x-k8s.io", "sandboxclaims", verb) for verb in ("create", "list", "watch", "delete")),
    ("extensions.agents.x-k8s.io", "sandboxwarmpools", "get"),
    ("agents.x-k8s.io", "sandboxes", "get"),
)
_MANIFESTS = "Apply the manifests of deploy/kubernetes (docs/kubernetes.md)."


def cluster_checks(word: str) -> list[Check]:
    """Check the cluster of an `engine` value; stop at the first check that makes the others impossible."""
    checks: list[Check] = []
    try:
        engine = cast("KubernetesEngine", shared_runtime(word).engine)
        version = engine.api.ask("GET", "/version").get("gitVersion", "?")
        checks.append(
            Check("cluster", "ok", f"Kubernetes {version!s:.40} at {engine.api.cluster.config.cluster.server}")
        )
        checks += _namespace(engine)
        checks.append(Check("image", "ok", f"{engine.maker.options.image}, by its fingerprint"))
        checks.append(_processes())
        checks.append(_sandbox(word))
    except EngineError as exc:
        checks.append(Check("engine", "fail", "a request to the cluster failed", str(exc)))
    except AgentToolsError as exc:
        checks.append(Check("sandbox", "fail", "did not run", getattr(exc, "message", None) or str(exc)))
    return checks


def _namespace(engine: KubernetesEngine) -> list[Check]:
    namespace = engine.maker.options.namespace
    wanted = RIGHTS + (POOL_RIGHTS if engine.maker.options.warm_pool else ())
    missing = [f"{verb} {resource}" for group, resource, verb in wanted if not _may(engine, group, resource, verb)]
    if missing:
        return [Check("rights", "fail", f"not allowed in {namespace}: {', '.join(missing)}", _MANIFESTS)]
    return [Check("rights", "ok", f"all that is needed in {namespace}"), _policy(engine), _seal(engine)]


def _may(engine: KubernetesEngine, group: str, resource: str, verb: str) -> bool:
    name, _, sub = resource.partition("/")
    asked = {"namespace": engine.maker.options.namespace, "verb": verb, "group": group, "resource": name}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {**asked, **({"subresource": sub} if sub else {})}},
    }
    answer = engine.api.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    status = answer.get("status")
    return isinstance(status, dict) and status.get("allowed") is True


def _policy(engine: KubernetesEngine) -> Check:
    path = f"/apis/networking.k8s.io/v1/namespaces/{engine.maker.options.namespace}/networkpolicies"
    return check_of_policies(list(engine.api.items(path)))


def check_of_policies(policies: list[dict[str, Any]]) -> Check:
    """Look for a policy that denies everything to every pod, and for others that allow some of it: policies add up."""
    specs = [(str(table(each.get("metadata")).get("name")), table(each.get("spec"))) for each in policies]
    if not any(_denies_everything(spec) for _, spec in specs):
        return Check("network policy", "warn", "none denies everything in the namespace", _MANIFESTS)
    allowing = [name for name, spec in specs if _has_rules(spec) and _may_select_ours(spec.get("podSelector"))]
    if allowing:
        return Check(
            "network policy",
            "warn",
            f"one denies everything, but others may allow sandboxes something: {', '.join(allowing):.200}",
            "Policies add up: remove these, or let them select only pods without our labels.",
        )
    return Check("network policy", "ok", "one denies everything to every pod")


def _denies_everything(spec: dict[str, Any]) -> bool:
    """Return whether it is for every pod, for both ways (`policyTypes`), and without rules, which would allow some."""
    types = spec.get("policyTypes")
    is_for_both = isinstance(types, list) and "Ingress" in types and "Egress" in types
    return is_for_both and not spec.get("podSelector") and not _has_rules(spec)


def _has_rules(spec: dict[str, Any]) -> bool:
    return bool(spec.get("ingress") or spec.get("egress"))


def _may_select_ours(selector: object) -> bool:
    """Return False where a label of ours is asked to be another; other labels may have been added to our pods."""
    found = table(selector)
    for name, ours in MANAGED_BY.items():
        if table(found.get("matchLabels")).get(name, ours) != ours:
            return False
        for each in tables(found.get("matchExpressions")):
            if each.get("key") == name and not _may_hold(each, ours):
                return False
    return True


def _may_hold(expression: dict[str, Any], value: str) -> bool:
    values = expression.get("values")
    is_listed = isinstance(values, list) and value in values
    return {"In": is_listed, "NotIn": not is_listed, "DoesNotExist": False}.get(str(expression.get("operator")), True)


def _seal(engine: KubernetesEngine) -> Check:
    options = engine.maker.options
    if options.seccomp == "localhost" and not options.runtime_class:
        return Check("sealing", "ok", "by the seccomp profile: no sockets of the internet")
    return Check(
        "sealing",
        "warn",
        "by the network policy only, which your configuration declares as enforced",
        "Try it: a pod of the namespace must reach nothing.",
    )


def _processes() -> Check:
    return Check(
        "processes",
        "warn",
        "the limit is the kubelet's, which cannot be read from here",
        "Set podPidsLimit in the kubelets' configuration, 512 or so.",
    )


def _sandbox(word: str) -> Check:
    with Sandbox({"engine": word}) as sandbox:
        execution = sandbox.run_code("print(2 + 2)")
    if execution.stdout != "4\n":
        return Check("sandbox", "fail", "did not answer", "Look at its pod with kubectl describe.")
    return Check("sandbox", "ok", f"first result {execution.duration * 1000:.0f} ms after its start")


# The output of `agent-tools doctor --probe`: a table of findings, or JSON.

_STYLES = {"held": "green", "open": "bold red", "unknown": "yellow", "info": "cyan"}


def probe(container: str | None, as_json: bool, runtime: str | None = None, volumes: str = "") -> bool:
    """Probe a fresh sandbox, or a running container, and print the findings. Return True if all promises held."""
    engine = DockerEngine()
    if container is None:
        ensure_with_progress(())
        survey = survey_sandbox(engine, context.tag_for(), runtime, read_volumes(volumes))
    else:
        survey = survey_container(engine, container)
    if as_json:
        click.echo(json.dumps(_values(survey), indent=2))
    else:
        _show(survey)
    return not survey.is_open


def _values(survey: Survey) -> dict[str, object]:
    numbers: dict[str, object] = dict(counts(survey.findings).items())
    return {
        "target": survey.target,
        "note": survey.note,
        "summary": {**numbers, "is_open": survey.is_open},
        "findings": [asdict(finding) for finding in survey.findings],
    }


def _show(survey: Survey) -> None:
    console = Console(highlight=False)
    table = Table("check", "", "found", "seen by", title=Text(f"Probe of {survey.target}"), title_justify="left")
    for category in CATEGORIES:
        table.add_section()
        table.add_row(Text(category.upper(), style="bold"))
        for finding in survey.findings:
            if finding.category == category:
                verdict = Text(finding.verdict, style=_STYLES[finding.verdict])
                table.add_row(Text(finding.name), verdict, Text(finding.found), finding.seen_by)
    console.print(table)
    console.print(
        "Seen by the code in the container: only its failures are trusted.",
        style="dim",
        soft_wrap=True,
    )
    if survey.note:
        console.print(Text(f"The code's side is unknown: {survey.note}.", style="yellow"), soft_wrap=True)
    for finding in survey.findings:
        if finding.advice:
            words = f"{finding.name}: {finding.found}. Not promised here: {finding.advice}"
            console.print(Text(words, style="yellow"), soft_wrap=True)
    console.print(Text(summary(survey)), soft_wrap=True)


def summary(survey: Survey) -> str:
    """Return one line: the count of each verdict, and whether the promises hold."""
    found = counts(survey.findings)
    total = ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS)
    ending = "some promises of the default sandbox are broken" if survey.is_open else "nothing promised is open"
    return f"{len(survey.findings)} checks: {total}; {ending}."


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
    checks += cluster_checks(word) if word.partition("://")[0] == "kubernetes" else _docker_checks()
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
