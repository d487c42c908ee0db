"""The checks of `agent-tools doctor` on an engine of pods: cluster, rights, namespace, and one real sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_tools.conformance.engine import Check
from agent_tools.errors import AgentToolsError, EngineError
from agent_tools.runtime.engines import shared_runtime
from agent_tools.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from agent_tools.runtime.kubernetes.engine import KubernetesEngine

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
    """Check the cluster that an engine's word names, as far as it goes."""
    checks: list[Check] = []
    try:
        engine: KubernetesEngine = shared_runtime(word).engine  # type: ignore[assignment]
        version = engine.api.ask("GET", "/version").get("gitVersion", "?")
        checks.append(Check("cluster", "ok", f"Kubernetes {version!s:.40} at {engine.api.cluster.server}"))
        checks += _namespace(engine)
        checks.append(Check("image", "ok", f"{engine.maker.options.image}, by its fingerprint"))
        checks.append(_processes())
        checks.append(_sandbox(word))
    except EngineError as exc:
        checks.append(Check("engine", "fail", "does not do what it is asked", str(exc)))
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
    """Look for a policy that takes everything from every pod of the namespace."""
    path = f"/apis/networking.k8s.io/v1/namespaces/{engine.maker.options.namespace}/networkpolicies"
    for item in engine.api.items(path):
        spec = item.get("spec")
        if (
            isinstance(spec, dict)
            and not spec.get("podSelector")
            and not spec.get("ingress")
            and not spec.get("egress")
        ):
            return Check("network policy", "ok", "one denies everything to every pod")
    return Check("network policy", "warn", "none denies everything in the namespace", _MANIFESTS)


def _seal(engine: KubernetesEngine) -> Check:
    options = engine.maker.options
    if options.seccomp == "localhost" and not options.runtime_class:
        return Check("sealing", "ok", "by the seccomp profile: no sockets of the internet")
    return Check(
        "sealing",
        "warn",
        "by the network policy alone, which you say is held",
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
