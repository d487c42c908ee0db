"""The pod that is a sandbox: the whole of it, and what every variant keeps."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_tools.engines.first_process import GUEST_SESSION
from agent_tools.engines.kubernetes.warm_pods import claim, pool, pool_name
from agent_tools.engines.network import NetworkPolicy
from agent_tools.engines.volumes import Volume
from agent_tools.errors import SandboxStartError
from agent_tools.guest.wire.gvisor import code_limit
from agent_tools.limits import MIB
from tests.unit.engines.kubernetes.specs import maker, spec

GOLDEN = Path(__file__).parents[3] / "golden" / "pod.json"
ENFORCED = {"network_policy": "enforced"}
LISTED = NetworkPolicy(allow=("pypi.org",))
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({}, {}),
    "small": ({}, {"memory": 128 * MIB, "cpus": 0.05, "env": {"A": "$(B) $$ $"}}),
    "listed": (ENFORCED, {"network": LISTED}),
    "gvisor": (ENFORCED, {"runtime": "gvisor"}),
    "gpus": ({}, {"gpus": 2}),
    "operator": (
        {**ENFORCED, "seccomp": "runtime-default", "pull_secret": "registry", "user_namespaces": True}
        | {"node_selector": {"pool": "sandboxes"}, "runtime_class": "kata"},
        {},
    ),
}


def pod_of(options: dict[str, Any], isolation: dict[str, Any]) -> dict[str, Any]:
    return maker(**options).pod(spec(**isolation), "sandbox-0011223344556677")


def test_the_whole_pod_is_as_agreed() -> None:
    assert pod_of({}, {}) == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize(("options", "isolation"), VARIANTS.values(), ids=VARIANTS.keys())
@pytest.mark.parametrize("version", ["1.29", "1.31", "1.34", "1.37"])
def test_kubernetes_own_schema_holds_it(options: dict[str, Any], isolation: dict[str, Any], version: str) -> None:
    import kubernetes_validate  # which has many megabytes of schemas

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kubernetes_validate.validate(pod_of(options, isolation), version, strict=True)


@pytest.mark.parametrize(("options", "isolation"), VARIANTS.values(), ids=VARIANTS.keys())
def test_it_is_what_pod_security_calls_restricted(options: dict[str, Any], isolation: dict[str, Any]) -> None:
    """The controls of https://kubernetes.io/docs/concepts/security/pod-security-standards/, one by one."""
    pod = pod_of(options, isolation)["spec"]
    (box,) = pod["containers"]
    security = box["securityContext"]
    assert not any(pod[name] for name in ("hostNetwork", "hostPID", "hostIPC"))
    assert not pod.keys() & {"initContainers", "ephemeralContainers"}
    assert security["privileged"] is security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] > 0
    assert security["procMount"] == "Default"
    assert not security.keys() & {"seLinuxOptions", "windowsOptions", "appArmorProfile"}
    assert {context["seccompProfile"]["type"] for context in (security, pod["securityContext"])} <= {
        "Localhost",
        "RuntimeDefault",
    }
    assert not pod["securityContext"].keys() & {"sysctls", "supplementalGroups"}
    assert [sorted(volume) for volume in pod["volumes"]] == [["emptyDir", "name"]] * len(pod["volumes"])
    assert not any("hostPort" in port for port in box.get("ports", []))
    assert not box.keys() & {"lifecycle", "livenessProbe", "readinessProbe", "startupProbe"}


@pytest.mark.parametrize(("options", "isolation"), VARIANTS.values(), ids=VARIANTS.keys())
def test_nothing_of_the_cluster_is_in_it(options: dict[str, Any], isolation: dict[str, Any]) -> None:
    pod = pod_of(options, isolation)["spec"]
    assert pod["automountServiceAccountToken"] is pod["enableServiceLinks"] is False
    assert pod["dnsPolicy"] == "None"
    assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert all("value" in each for each in pod["containers"][0]["env"])


def test_every_limit_has_its_place() -> None:
    sizes = {"tmp": 2 * MIB, "home": 5 * MIB, "shm": 3 * MIB, "memory": 129 * MIB, "file_size": 7 * MIB}
    pod = pod_of({}, {**sizes, "cpus": 1.5, "open_files": 200})["spec"]
    (box,) = pod["containers"]
    assert box["resources"]["limits"] == {
        "cpu": "1500m",
        "memory": str(129 * MIB),
        "ephemeral-storage": str(16 * MIB),
    }
    assert box["command"][-4:] == ["hold", "200", str(7 * MIB), "120"]
    assert {each["name"]: each["emptyDir"] for each in pod["volumes"]} == {
        name: {"medium": "Memory", "sizeLimit": str(size)}
        for name, size in {
            "tmp": 2 * MIB,
            "var-tmp": 2 * MIB,
            "home": 5 * MIB,
            "shm": 3 * MIB,
            "work-dir": 1024 * MIB,
        }.items()
    }


@pytest.mark.parametrize(("name", "is_wider"), [("gvisor", True), ("kata", False), (None, False)])
def test_the_limit_of_a_pod_under_gvisor_is_wider_than_its_codes(name: str | None, is_wider: bool) -> None:
    by_option, by_name = {"runtime_class": name or "", "network_policy": "enforced"}, {"runtime": name}
    for options, limits in ((by_option, {}), ({"network_policy": "enforced"}, by_name)):
        found = pod_of(options, {**limits, "memory": 512 * MIB})["spec"]["containers"][0]["resources"]
        limit = int(found["limits"]["memory"])
        assert (code_limit(limit) if is_wider else limit) == 512 * MIB


def test_nothing_is_reserved_that_may_not_be_used() -> None:
    requests = pod_of({"memory_request": 512 * MIB, "cpu_request": 1}, {"memory": 128 * MIB, "cpus": 0.25})
    found = requests["spec"]["containers"][0]["resources"]["requests"]
    assert (found["memory"], found["cpu"]) == (str(128 * MIB), "250m")


def test_without_a_list_there_is_no_socket_but_of_this_machine() -> None:
    sealed, loopback = (
        pod_of(*VARIANTS[name])["spec"]["containers"][0]["securityContext"]["seccompProfile"]["localhostProfile"]
        for name in ("default", "listed")
    )
    assert sealed.startswith("agent-tools/sealed-")
    assert loopback.startswith("agent-tools/loopback-")


def test_a_list_adds_a_place_and_variables() -> None:
    plain, listed = (pod_of(ENFORCED, {"network": each})["spec"]["containers"][0] for each in ("none", LISTED))
    places = [{each["mountPath"] for each in box["volumeMounts"]} for box in (plain, listed)]
    assert places[1] - places[0] == {GUEST_SESSION}
    assert {each["name"] for each in listed["env"]} > {each["name"] for each in plain["env"]}


def test_volumes_are_claims() -> None:
    volumes = (Volume("data", "a-claim"), Volume("shared", "b-claim", True))
    plain, more = (maker().pod_spec(replace(spec(), volumes=each), 60) for each in ((), volumes))
    assert more["volumes"][len(plain["volumes"]) :] == [
        {"name": "volume-0", "persistentVolumeClaim": {"claimName": "a-claim", "readOnly": True}},
        {"name": "volume-1", "persistentVolumeClaim": {"claimName": "b-claim", "readOnly": False}},
    ]
    places = [box["volumeMounts"] for box in (plain["containers"][0], more["containers"][0])]
    assert places[1][len(places[0]) :] == [
        {"name": "volume-0", "mountPath": "/volumes/data", "readOnly": True},
        {"name": "volume-1", "mountPath": "/volumes/shared", "readOnly": False},
    ]
    assert more["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"  # or each start would visit all files
    with pytest.raises(SandboxStartError, match="a pod takes a claim by name: data=CLAIM"):
        maker().pod_spec(replace(spec(), volumes=(Volume("data", "/srv/data"),)), 60)


def test_skills_add_a_place() -> None:
    plain, skilled = (maker().pod_spec(replace(spec(), skills=each), 60) for each in ((), (Path("/srv/s/0a/pdf"),)))
    added = skilled["volumes"][-1]
    assert added == {"name": "skills", "emptyDir": {"medium": "Memory", "sizeLimit": str(64 * MIB)}}
    assert {"name": "skills", "mountPath": "/skills"} in skilled["containers"][0]["volumeMounts"]
    assert skilled["volumes"][:-1] == plain["volumes"]


@pytest.mark.parametrize(
    ("isolation", "readable"),
    [
        ({"network": "bridge"}, "a pod takes 'none' or a list"),
        ({"gpus": "all"}, "give a number"),
        ({"network": LISTED}, "AGENT_TOOLS_KUBERNETES_NETWORK_POLICY=enforced"),
        ({"runtime": "gvisor"}, "AGENT_TOOLS_KUBERNETES_NETWORK_POLICY=enforced"),
    ],
)
def test_what_nobody_could_hold_is_refused(isolation: dict[str, Any], readable: str) -> None:
    with pytest.raises(SandboxStartError, match=readable):
        pod_of({}, isolation)


def test_a_folder_of_this_machine_is_refused() -> None:
    for mounted in ({"run_dir": Path("/run/x")}, {"work_dir": Path("/srv")}):
        with pytest.raises(SandboxStartError, match="shares no folder"):
            maker().pod(replace(spec(), **mounted), "a")


def test_code_cannot_get_at_what_the_node_keeps_of_a_pods_end() -> None:
    """It counts in no limit, and the folder is open to root alone."""
    assert pod_of({}, {})["spec"]["containers"][0]["terminationMessagePath"].startswith("/root/")


def test_variables_are_taken_literally() -> None:
    env = pod_of(*VARIANTS["small"])["spec"]["containers"][0]["env"]
    assert env[-1] == {"name": "A", "value": "$$(B) $$$$ $$"}


# -- pools -------------------------------------------------------------------------------------------------------------


def test_a_pool_holds_just_what_would_be_made() -> None:
    template, warm = pool(maker(), spec(), 3)
    made = pod_of({}, {})["spec"]
    waiting = template["spec"]["podTemplate"]["spec"]
    assert waiting["containers"][0]["command"][-1] == "0"
    waiting["containers"][0]["command"][-1] = "120"
    assert waiting == {name: value for name, value in made.items() if name != "activeDeadlineSeconds"}
    assert warm["spec"]["replicas"] == 3
    assert template["spec"]["networkPolicy"] == {"ingress": [], "egress": []}


def test_how_long_a_pod_has_waited_does_not_count_in_its_sessions_time() -> None:
    """The pod's deadline would count from its start; a claim's is a time, made when it is taken."""
    template, _ = pool(maker(deadline=3600.0), spec(), 1)
    assert "activeDeadlineSeconds" not in template["spec"]["podTemplate"]["spec"]
    assert pool_name(maker(deadline=3600.0), spec()) == pool_name(maker(), spec())
    end = claim(maker(deadline=3600.0), spec(), "sandbox-1")["spec"]["lifecycle"]["shutdownTime"]
    left = datetime.strptime(end, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC) - datetime.now(UTC)
    assert timedelta(seconds=3500) < left <= timedelta(seconds=3601)


def test_another_spec_has_another_pool() -> None:
    names = {pool_name(maker(**options), spec(**isolation)) for options, isolation in VARIANTS.values()}
    assert len(names) == len(VARIANTS)
    assert pool_name(maker(), replace(spec(), labels={}, is_ahead=True)) == pool_name(maker(), spec())
    assert pool_name(maker(), replace(spec(), image="a:b")) != pool_name(maker(), spec())


def test_a_claim_starts_warm_and_ends() -> None:
    found = claim(maker(), spec(), "sandbox-1")
    assert found["spec"].keys() == {"warmPoolRef", "lifecycle", "additionalPodMetadata"}
    assert found["spec"]["lifecycle"]["shutdownPolicy"] == "Delete"
    assert found["spec"]["additionalPodMetadata"]["annotations"]["agent-tools/claim"] == "sandbox-1"
