"""How far a pod is, by what its status says; anything else is under way."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.engines.kubernetes.progress import progress_of
from agent_tools.engines.kubernetes.warm_pods import progress_of_claim

RUNNING = {"phase": "Running", "containerStatuses": [{"state": {"running": {"startedAt": "now"}}}]}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"state": state}]}


def test_it_runs_when_its_container_does() -> None:
    assert progress_of({"status": RUNNING}).is_running
    assert not progress_of({"status": {"phase": "Running"}}).is_running


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing"])
def test_what_is_under_way_is_waited_for(reason: str) -> None:
    progress = progress_of({"status": waiting(reason)})
    assert not progress.failure
    assert not progress.is_running


@pytest.mark.parametrize(
    ("status", "readable"),
    [
        (waiting("ErrImagePull", "no such image"), "ErrImagePull: no such image. Nodes must be able to pull it"),
        (waiting("CreateContainerError", "cannot load seccomp profile"), "DaemonSet"),
        (waiting("RunContainerError", "user namespaces are off: user namespace"), "USER_NAMESPACES"),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, "Evicted: low on memory"),
        ({"phase": "Succeeded"}, "it has ended"),
        (
            {
                "phase": "Failed",
                "containerStatuses": [{"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}],
            },
            r"OOMKilled \(exit code 137\)",
        ),
    ],
)
def test_what_will_not_run_says_why(status: dict[str, Any], readable: str) -> None:
    assert re.search(readable, progress_of({"status": status}).failure)


def test_a_pod_without_a_node_says_what_it_waits_for() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    progress = progress_of({"status": {"phase": "Pending", "conditions": [condition]}})
    assert not progress.failure  # an autoscaler may bring one
    assert progress.waits_for.startswith("Unschedulable: 0/3 nodes")


def test_one_that_somebody_deletes_will_not_run() -> None:
    assert progress_of({"metadata": {"deletionTimestamp": "now"}, "status": RUNNING}).has_ended


def test_words_are_bounded_and_on_one_line() -> None:
    failure = progress_of({"status": waiting("A", "x\ny" * 10_000)}).failure
    assert len(failure) < 1_200
    assert "\n" not in failure


NAMES = ["status", "phase", "state", "waiting", "containerStatuses", "reason", "message", "metadata", "conditions"]
scalars = st.sampled_from([None, True, 7, "", "Running", "False"])
tables = st.dictionaries(st.sampled_from(NAMES), scalars | st.lists(scalars, max_size=2), max_size=3)
deep = st.dictionaries(st.sampled_from(NAMES), tables | st.lists(tables, max_size=2), max_size=3)


@given(st.dictionaries(st.sampled_from(["status", "metadata"]), scalars | tables | deep, max_size=2))
def test_any_status_is_read(found: dict[str, Any]) -> None:
    progress = progress_of(found)
    assert not progress.is_running
    assert len(progress.failure) + len(progress.waits_for) < 2_000
    progress_of_claim(found)


def test_a_claim_is_there_when_it_has_a_sandbox() -> None:
    ready = {"type": "Ready", "status": "True"}
    assert progress_of_claim({"status": {"conditions": [ready], "sandbox": {"name": "a"}}}).pod == "a"
    assert not progress_of_claim({"status": {"conditions": [ready]}}).is_running
    expired = {"type": "Ready", "status": "False", "reason": "ClaimExpired", "message": "m"}
    assert progress_of_claim({"status": {"conditions": [expired]}}).failure == "ClaimExpired: m"
    odd = {"type": "Ready", "reason": ["ClaimExpired"]}
    assert not progress_of_claim({"status": {"conditions": [odd]}}).failure
    states = [{"state": {"waiting": {"reason": ["ContainerCreating"]}}}]
    assert not progress_of({"status": {"phase": "Pending", "containerStatuses": states}}).is_running
