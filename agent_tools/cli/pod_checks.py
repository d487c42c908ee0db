"""The checks of `agent-tools doctor` on an engine of pods: cluster, rights, namespace, and one real sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from agent_tools.conformance.engine import Check
from agent_tools.engines.kubernetes.answers import table, tables
from agent_tools.engines.kubernetes.pod import MANAGED_BY
from agent_tools.errors import AgentToolsError, EngineError
from agent_tools.runtime.engine_lookup import shared_runtime
from agent_tools.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from agent_tools.engines.kubernetes.engine import KubernetesEngine


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
