import os
from typing import Any

import pytest

from agent_tools.runtime.docker.info import EngineInfo
from agent_tools.runtime.engine import Isolation
from agent_tools.runtime.probe import Check, engine_checks, sandbox_checks
from agent_tools.settings import MIB

NO_SUCH_PID = 2**22 + 1  # above the kernel's largest pid_max


def info(**facts: Any) -> EngineInfo:
    usual = {
        "version": "27.3.1",
        "api_version": "1.47",
        "runtimes": ("runc", "runsc"),
        "is_rootless": True,
        "has_userns_remap": False,
        "cgroup_version": "2",
        "storage_driver": "overlay2",
        "kernel": "6.12.0",
        "memory_limited": True,
    }
    return EngineInfo(**{**usual, **facts})


def container(**host: Any) -> dict[str, Any]:
    limits = Isolation()
    usual = {
        "NetworkMode": "none",
        "Privileged": False,
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges:true", 'seccomp={"defaultAction": "SCMP_ACT_ERRNO"}'],
        "Memory": limits.memory,
        "MemorySwap": limits.memory,
        "NanoCpus": 1_000_000_000,
        "PidsLimit": limits.pids,
    }
    return {"HostConfig": {**usual, **host}, "NetworkSettings": {"Ports": {}}, "State": {"Pid": NO_SUCH_PID}}


def by_name(checks: Any) -> dict[str, Check]:
    return {check.name: check for check in checks}


@pytest.mark.parametrize(
    ("version", "verdict"),
    [
        ("19.03.15", "fail"),
        ("20.9.0", "fail"),
        ("?", "fail"),
        ("20.10.24+dfsg1", "warn"),
        ("24.0.9", "warn"),
        ("25.0.0", "ok"),
        ("27.3.1-rc.1", "ok"),
        ("100.0", "ok"),
    ],
)
def test_an_engine_is_judged_by_its_version(version: str, verdict: str) -> None:
    check = by_name(engine_checks(info(version=version)))["engine"]
    assert check.verdict == verdict
    assert version in check.found
    assert bool(check.advice) == (verdict != "ok")


@pytest.mark.parametrize(("is_rootless", "verdict", "found"), [(True, "ok", "rootless"), (False, "warn", "rootful")])
def test_a_rootful_engine_is_worth_a_warning(is_rootless: bool, verdict: str, found: str) -> None:
    check = by_name(engine_checks(info(is_rootless=is_rootless)))["engine's privileges"]
    assert (check.verdict, check.found) == (verdict, found)


def test_memory_limits_that_do_not_hold_are_a_failure() -> None:
    assert by_name(engine_checks(info(memory_limited=False)))["memory limits"].verdict == "fail"
    assert "memory limits" not in by_name(engine_checks(info()))


def test_remapped_users_are_a_failure_for_a_caller_who_is_root() -> None:
    checks = by_name(engine_checks(info(has_userns_remap=True)))
    assert [check.verdict for name, check in checks.items() if name == "user namespaces"] == ["fail"] * (
        os.getuid() == 0
    )
    assert "user namespaces" not in by_name(engine_checks(info()))


def test_runtimes_and_kernel_are_told() -> None:
    checks = by_name(engine_checks(info()))
    assert checks["OCI runtimes"].found == "runc, runsc"
    assert checks["kernel"].found == "6.12.0"
    assert by_name(engine_checks(info(runtimes=())))["OCI runtimes"].found == "runc"


def test_a_sandbox_as_we_make_it_has_no_failures() -> None:
    checks = list(sandbox_checks(container(), Isolation()))
    assert [check for check in checks if check.verdict == "fail"] == []
    assert len(checks) > 8


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ({"NetworkMode": "bridge"}, "network"),
        ({"Privileged": True}, "privileged"),
        ({"ReadonlyRootfs": False}, "root file system"),
        ({"CapDrop": None}, "capabilities dropped"),
        ({"CapDrop": ["NET_RAW"]}, "capabilities dropped"),
        ({"SecurityOpt": None}, "own seccomp profile"),
        ({"SecurityOpt": ["seccomp=unconfined"]}, "own seccomp profile"),
        ({"Memory": 0, "MemorySwap": 0}, "memory limit"),
        ({"MemorySwap": -1}, "swap beyond it"),
        ({"MemorySwap": 4096 * MIB}, "swap beyond it"),
        ({"NanoCpus": 0}, "CPU limit"),
        ({"PidsLimit": None}, "process limit"),
    ],
    ids=str,
)
def test_a_setting_that_was_not_taken_is_a_failure(host: dict[str, Any], name: str) -> None:
    checks = by_name(sandbox_checks(container(**host), Isolation()))
    assert [check.name for check in checks.values() if check.verdict == "fail"] == [name]
    assert "Expected" in checks[name].advice


def test_limits_of_ones_own_are_what_is_expected() -> None:
    isolation = Isolation(network="bridge", memory=512 * MIB, cpus=0.5, pids=64)
    host = {"NetworkMode": "bridge", "Memory": 512 * MIB, "MemorySwap": 512 * MIB, "PidsLimit": 64}
    checks = sandbox_checks(container(**host, NanoCpus=500_000_000), isolation)
    assert [check for check in checks if check.verdict == "fail"] == []


def test_a_published_port_is_a_failure() -> None:
    facts = {**container(), "NetworkSettings": {"Ports": {"80/tcp": [{"HostPort": "8080"}]}}}
    assert by_name(sandbox_checks(facts, Isolation()))["published ports"].verdict == "fail"


def test_processes_out_of_sight_are_worth_a_warning() -> None:
    assert by_name(sandbox_checks(container(), Isolation()))["processes"].verdict == "warn"


def test_processes_are_judged_by_what_the_host_sees() -> None:
    facts = {**container(), "State": {"Pid": os.getpid()}}
    checks = by_name(sandbox_checks(facts, Isolation()))
    assert checks["runs as root"].verdict == ("fail" if os.getuid() == 0 else "ok")
    assert {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp filter"} <= checks.keys()
    assert checks["CapBnd"].verdict == "fail"  # that of an ordinary process is full
