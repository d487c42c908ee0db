"""What doctor says of a namespace's network policies."""

from __future__ import annotations

from typing import Any

import pytest

from agent_tools.cli.pod_checks import check_of_policies

BOTH = ["Ingress", "Egress"]
MANAGER = "app.kubernetes.io/managed-by"


def policy(name: str, **spec: object) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"podSelector": {}, **spec}}


DENY_ALL = policy("deny-all", policyTypes=BOTH)


def allowing(selector: dict[str, Any]) -> dict[str, Any]:
    return policy("allow-dns", podSelector=selector, policyTypes=["Egress"], egress=[{"ports": [{"port": 53}]}])


def expression(operator: str, *values: str, key: str = MANAGER) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


def test_one_for_both_ways_and_every_pod_denies_everything() -> None:
    assert check_of_policies([DENY_ALL]).verdict == "ok"
    assert check_of_policies([policy("other", policyTypes=["Ingress"]), DENY_ALL]).verdict == "ok"


@pytest.mark.parametrize(
    "spec",
    [
        {"policyTypes": ["Ingress"]},
        {"policyTypes": ["Egress"]},
        {},
        {"policyTypes": BOTH, "egress": [{}]},
        {"policyTypes": BOTH, "ingress": [{}]},
        {"policyTypes": BOTH, "podSelector": {"matchLabels": {"a": "b"}}},
    ],
)
def test_anything_less_does_not(spec: dict[str, Any]) -> None:
    found = check_of_policies([policy("some", **spec)])
    assert (found.verdict, found.found) == ("warn", "none denies everything in the namespace")


@pytest.mark.parametrize(
    "selector",
    [
        {},
        {"matchLabels": {MANAGER: "agent-tools"}},
        {"matchLabels": {"team": "a"}},  # which somebody may have added
        expression("In", "agent-tools", "helm"),
        expression("NotIn", "helm"),
        expression("Exists"),
        expression("DoesNotExist", key="team"),
    ],
)
def test_another_that_may_allow_our_pods_something_is_told(selector: dict[str, Any]) -> None:
    found = check_of_policies([DENY_ALL, allowing(selector)])
    assert found.verdict == "warn"
    assert "allow-dns" in found.found


@pytest.mark.parametrize(
    "selector",
    [
        {"matchLabels": {MANAGER: "helm"}},
        expression("In", "helm"),
        expression("NotIn", "agent-tools"),
        expression("DoesNotExist"),
    ],
)
def test_another_that_cannot_be_for_our_pods_is_not(selector: dict[str, Any]) -> None:
    assert check_of_policies([DENY_ALL, allowing(selector)]).verdict == "ok"
