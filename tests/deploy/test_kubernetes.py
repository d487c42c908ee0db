"""The manifests of deploy/kubernetes: as helm renders them, as Kubernetes takes them, and as safe as they say."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import pytest
import yaml

from supply.kubernetes import CHART, MANIFESTS, ROOT, profiles, rendered

OBJECTS: list[dict[str, Any]] = [each for each in yaml.safe_load_all(MANIFESTS.read_text()) if each]
TEMPLATES = [each for each in OBJECTS if each["kind"] in ("Deployment", "DaemonSet", "StatefulSet")]


def find(kind: str, name: str = "") -> dict[str, Any]:
    (found,) = [each for each in OBJECTS if each["kind"] == kind and name in each["metadata"]["name"]]
    return found


def test_they_are_what_helm_renders() -> None:
    subprocess.run([sys.executable, "-m", "supply.kubernetes", "--check"], cwd=ROOT, check=True)


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    subprocess.run([ROOT / "scripts" / "tries" / "helm", "lint", "--strict", CHART], check=True, capture_output=True)


@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
def test_kubernetes_own_schemas_hold_them(version: str) -> None:
    import kubernetes_validate  # which has many megabytes of schemas

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in OBJECTS:
            kubernetes_validate.validate(each, version, strict=True)


def test_the_profiles_are_those_that_pods_name() -> None:
    assert find("ConfigMap")["data"] == profiles()


def test_sandboxes_have_a_namespace_without_network_or_rights() -> None:
    namespace = find("Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    policy = find("NetworkPolicy")
    assert policy["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert {each["metadata"]["namespace"] for each in (policy, find("ResourceQuota"))} == {
        namespace["metadata"]["name"]
    }


def test_nothing_is_made_that_the_cluster_makes_by_itself() -> None:
    """The account `default` of a namespace: helm would find that it exists already. No pod of ours has its token."""
    assert find("ServiceAccount")["metadata"]["name"] == "agent-tools-gateway"


def test_the_gateway_may_do_nothing_elsewhere() -> None:
    assert not [each for each in OBJECTS if each["kind"].startswith("Cluster")]
    role = find("Role")
    assert role["metadata"]["namespace"] == find("Namespace")["metadata"]["name"]
    assert not {"secrets", "nodes", "*"} & {
        name for rule in role["rules"] for name in rule["resources"] + rule["verbs"]
    }


@pytest.mark.parametrize("found", TEMPLATES, ids=lambda each: each["metadata"]["name"])
def test_no_process_can_gain_anything(found: dict[str, Any]) -> None:
    pod = found["spec"]["template"]["spec"]
    assert pod["enableServiceLinks"] is False
    for box in pod["containers"]:
        assert box["securityContext"]["allowPrivilegeEscalation"] is False
        assert box["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in box["resources"]["limits"]


def test_only_what_brings_the_profiles_touches_a_node() -> None:
    with_folders = [
        each["metadata"]["name"]
        for each in TEMPLATES
        if any("hostPath" in volume for volume in each["spec"]["template"]["spec"].get("volumes", []))
    ]
    assert with_folders == ["agent-tools-profiles"]


def test_every_value_has_its_effect() -> None:
    options = ["sandboxes.warmPool=true", "sandboxes.pullSecret=reg", "sandboxes.runtimeClass=gvisor"]
    options += ["gateway.pullSecret=reg", "gateway.env.AGENT_TOOLS_GATEWAY_TIMEOUT=60", "profiles.enabled=false"]
    options += ["postgres.enabled=false", "sandboxes.networkPolicy=enforced", "sandboxes.namespace=boxes"]
    text = rendered(*(part for option in options for part in ("--set", option)))
    kinds = [each["kind"] for each in yaml.safe_load_all(text) if each]
    assert not {"DaemonSet", "ConfigMap", "StatefulSet"} & set(kinds)
    for told in ("sandboxclaims", 'RUNTIME_CLASS, value: "gvisor"', "WARM_POOL", "PULL_SECRET", "GATEWAY_TIMEOUT"):
        assert told in text
    assert 'NETWORK_POLICY, value: "enforced"' in text


def test_the_gateway_has_the_time_to_stop_in_that_it_takes() -> None:
    from agent_tools.gateway.config import GatewayConfig
    from agent_tools.gateway.jobs import LAST_WORDS

    config = GatewayConfig("http://u/v1")
    grace = find("Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > config.shutdown_grace + LAST_WORDS + 1 + config.park_timeout
