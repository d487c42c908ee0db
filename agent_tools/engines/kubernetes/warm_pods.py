"""Warm pods of agent-sandbox (SIG Apps): the pool to make once, and the claim that takes one out of it. Pure.

A pool holds pods of one spec, so its name carries a digest of the spec: an engine takes a pod only out of the pool
that holds just what it would make itself, release and options included. Environment variables or volumes in a claim
would make it start cold, and a claim that is not deleted gets its pod made anew. The API:
extensions.agents.x-k8s.io/v1beta1, https://github.com/kubernetes-sigs/agent-sandbox.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from agent_tools.engines.engine import SandboxSpec
from agent_tools.engines.kubernetes.answers import table, tables
from agent_tools.engines.kubernetes.pod import FOR_EVER, MANAGED_BY, PodMaker, metadata
from agent_tools.engines.kubernetes.progress import Progress

API_VERSION = "extensions.agents.x-k8s.io/v1beta1"
CLAIMS, POOLS = "sandboxclaims", "sandboxwarmpools"
CLAIM_ANNOTATION = "agent-tools/claim"
POD_NAME = "agents.x-k8s.io/pod-name"
FINISHED_SECONDS = 60  # seconds for which a claim is kept whose pod has ended
_ENDED = ("ClaimExpired", "SandboxExpired", "TemplateNotFound", "WarmPoolNotFound", "InvalidMetadata")


def pool_name(maker: PodMaker, spec: SandboxSpec) -> str:
    """Return the name of the pool for sandboxes of this spec."""
    content = json.dumps(maker.pod_spec(spec, FOR_EVER), sort_keys=True)
    return f"agent-tools-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def pool(maker: PodMaker, spec: SandboxSpec, size: int) -> list[dict[str, Any]]:
    """Return the SandboxTemplate and the SandboxWarmPool that keep `size` sandboxes of this spec waiting."""
    name, namespace = pool_name(maker, spec), maker.options.namespace
    named = {"name": name, "namespace": namespace, "labels": dict(MANAGED_BY)}
    template = {
        "podTemplate": {"metadata": {"labels": dict(MANAGED_BY)}, "spec": maker.pod_spec(spec, FOR_EVER)},
        "service": False,
        "networkPolicy": {"ingress": [], "egress": []},  # the controller's default policy would allow the internet
        "envVarsInjectionPolicy": "Disallowed",
        "volumeClaimTemplatesPolicy": "Disallowed",
    }
    return [
        {"apiVersion": API_VERSION, "kind": "SandboxTemplate", "metadata": named, "spec": template},
        {
            "apiVersion": API_VERSION,
            "kind": "SandboxWarmPool",
            "metadata": named,
            "spec": {"replicas": size, "sandboxTemplateRef": {"name": name}, "updateStrategy": {"type": "Recreate"}},
        },
    ]


def claim(maker: PodMaker, spec: SandboxSpec, name: str) -> dict[str, Any]:
    """Return the claim of one sandbox of this spec."""
    found = metadata(spec)
    on_pod = {**found, "annotations": {**found["annotations"], CLAIM_ANNOTATION: name}}
    end = datetime.now(UTC) + timedelta(seconds=round(maker.options.deadline))
    return {
        "apiVersion": API_VERSION,
        "kind": "SandboxClaim",
        "metadata": {"name": name, "namespace": maker.options.namespace, **found},
        "spec": {
            "warmPoolRef": {"name": pool_name(maker, spec)},
            "lifecycle": {
                "shutdownTime": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
                "shutdownPolicy": "Delete",
                "ttlSecondsAfterFinished": FINISHED_SECONDS,
            },
            "additionalPodMetadata": on_pod,
        },
    }


def has_ready(found: dict[str, Any]) -> bool:
    """Return whether a SandboxWarmPool has a ready sandbox."""
    ready = table(found.get("status")).get("readyReplicas")
    return isinstance(ready, int) and ready > 0


def progress_of_claim(found: dict[str, Any]) -> Progress:
    """Read the progress of a claim; `pod` is the name of the Sandbox that it got."""
    status = table(found.get("status"))
    name = table(status.get("sandbox")).get("name")
    for condition in tables(status.get("conditions")):
        if condition.get("type") == "Ready" and condition.get("status") == "True" and isinstance(name, str) and name:
            return Progress(is_running=True, pod=name)
        if condition.get("reason") in _ENDED:
            return Progress(failure=f"{condition['reason']}: {condition.get('message')!s:.300}")
    return Progress(waits_for="a sandbox out of the pool")


def pod_name_of(sandbox: dict[str, Any], name: str) -> str:
    """Return the name of a Sandbox's pod: the Sandbox's own name, unless the pod came from a pool."""
    adopted = table(table(sandbox.get("metadata")).get("annotations")).get(POD_NAME)
    return adopted if isinstance(adopted, str) and adopted else name
