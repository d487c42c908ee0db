from pathlib import Path
from typing import Any

import pytest

from agent_tools.conformance.engine import Check, Machine, engine_checks, read_machine
from agent_tools.engines.docker.engine_info import EngineInfo


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


@pytest.mark.parametrize(("version", "verdict"), [("4.2.0", "fail"), ("4.3.1", "warn"), ("5.4.2", "ok")])
def test_podman_is_judged_by_versions_of_its_own(version: str, verdict: str) -> None:
    check = by_name(engine_checks(info(version=version, name="Podman")))["engine"]
    assert (check.verdict, check.found.split(",")[0]) == (verdict, f"Podman {version}")
    assert ("Podman 4.3 or newer" in check.advice) == (verdict == "fail")


@pytest.mark.parametrize(("is_rootless", "verdict", "found"), [(True, "ok", "rootless"), (False, "warn", "rootful")])
def test_a_rootful_engine_is_worth_a_warning(is_rootless: bool, verdict: str, found: str) -> None:
    check = by_name(engine_checks(info(is_rootless=is_rootless)))["engine's privileges"]
    assert (check.verdict, check.found) == (verdict, found)


def test_memory_limits_that_do_not_hold_are_a_failure() -> None:
    assert by_name(engine_checks(info(memory_limited=False)))["memory limits"].verdict == "fail"
    assert "memory limits" not in by_name(engine_checks(info()))


def test_an_engine_that_maps_users_is_named() -> None:
    checks = by_name(engine_checks(info(has_userns_remap=True)))
    assert checks["user namespaces"].found.startswith("userns-remap")
    assert "user namespaces" not in by_name(engine_checks(info()))


def test_runtimes_and_kernel_are_told() -> None:
    checks = by_name(engine_checks(info()))
    assert (checks["OCI runtimes"].found, checks["OCI runtimes"].advice) == ("runc, runsc (default: runc)", "")
    assert checks["kernel"].found == "6.12.0"
    without = by_name(engine_checks(info(runtimes=())))["OCI runtimes"]
    assert without.found == "runc (default: runc)"
    assert "runsc install" in without.advice


@pytest.mark.parametrize(("pattern", "verdicts"), [("core", []), ("|/usr/bin/keep %p", ["warn"]), ("", [])])
def test_core_dumps_that_are_piped_are_worth_a_warning(pattern: str, verdicts: list[str]) -> None:
    checks = by_name(engine_checks(info(), machine=Machine(core_pattern=pattern)))
    assert [check.verdict for name, check in checks.items() if name == "core dumps"] == verdicts


def machine(root: Path, *interfaces: str, program: str = "dockerd") -> Machine:
    """A machine with these interfaces, on which a program runs under the pid that Docker noted as its own."""
    for interface in interfaces:
        (root / "sys/class/net" / interface).mkdir(parents=True)
    (root / "proc/42").mkdir(parents=True)
    (root / "proc/42/comm").write_text(f"{program}\n")
    (root / "var/run").mkdir(parents=True)
    (root / "var/run/docker.pid").write_text("42")
    return read_machine(root)


def test_a_bridge_that_was_deleted_is_a_failure_that_says_what_to_do(tmp_path: Path) -> None:
    found = machine(tmp_path, "lo", "eth0")
    check = by_name(engine_checks(info(is_rootless=False), "docker0", found))["engine's bridge"]
    assert (check.verdict, check.found) == ("fail", "docker0 is gone")
    assert "image build" in check.advice
    assert "systemctl restart docker" in check.advice


SOUND = {
    "the bridge is there": ({"is_rootless": False}, "docker0", ("lo", "docker0"), "dockerd"),
    "the engine has no default network": ({"is_rootless": False}, "", ("lo",), "dockerd"),
    "a rootless engine has interfaces of its own": ({"is_rootless": True}, "docker0", ("lo",), "dockerd"),
    "so has one in a virtual machine": ({"is_rootless": False, "is_desktop": True}, "docker0", ("lo",), "dockerd"),
    "the engine does not run here": ({"is_rootless": False}, "docker0", ("lo",), "another"),
}


@pytest.mark.parametrize(("facts", "bridge", "interfaces", "program"), SOUND.values(), ids=SOUND.keys())
def test_no_other_bridge_is_called_gone(
    facts: dict[str, Any], bridge: str, interfaces: tuple[str, ...], program: str, tmp_path: Path
) -> None:
    found = machine(tmp_path, *interfaces, program=program)
    assert "engine's bridge" not in by_name(engine_checks(info(**facts), bridge, found))


def test_a_machine_of_which_nothing_can_be_read_has_no_facts(tmp_path: Path) -> None:
    assert read_machine(tmp_path) == Machine()
