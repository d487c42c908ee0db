"""The facts of an engine, from answers as Docker and Podman give them."""

from __future__ import annotations

from typing import Any

import pytest

from agent_tools.engines.docker.engine_info import EngineInfo

DOCKER = {"ServerVersion": "20.10.24", "CgroupVersion": "2", "MemoryLimit": True, "Runtimes": {"runc": {}, "runsc": {}}}
PODMAN = {
    "ServerVersion": "4.3.1",
    "CgroupVersion": "1",
    "MemoryLimit": True,
    "SecurityOptions": ["name=seccomp,profile=default"],
    "DefaultRuntime": "runc",
    "Runtimes": {"runc": {}, "crun": {}, "kata": {}},
    "Rootless": True,
}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (EngineInfo.of({**DOCKER, "SecurityOptions": ["name=rootless"]}, "1.41"), True),
        (EngineInfo.of({**DOCKER, "SecurityOptions": None}, "1.41"), False),
        (EngineInfo.of(PODMAN, "1.41", "Podman"), True),
        (EngineInfo.of({**PODMAN, "Rootless": False}, "1.41", "Podman"), False),
    ],
)
def test_an_engine_says_whether_it_is_rootless(found: EngineInfo, expected: bool) -> None:
    assert found.is_rootless == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"CgroupVersion": "2"}, True),
        ({"Rootless": False}, True),
        ({"Rootless": False, "MemoryLimit": False}, False),
    ],
)
def test_limits_that_podman_says_it_has_and_ignores_do_not_count(changes: dict[str, Any], expected: bool) -> None:
    assert EngineInfo.of({**PODMAN, **changes}, "1.41", "Podman").memory_limited == expected


def test_of_the_runtimes_that_podman_names_only_its_own_is_known_to_be_there() -> None:
    assert EngineInfo.of(PODMAN, "1.41", "Podman").runtimes == ("runc",)
    assert EngineInfo.of(DOCKER, "1.41").runtimes == ("runc", "runsc")
    assert EngineInfo.of({**DOCKER, "DefaultRuntime": "runsc"}, "1.41").runtimes == ("runsc", "runc")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (EngineInfo.of({**DOCKER, "CPUShares": True}, "1.41"), True),
        (EngineInfo.of({**DOCKER, "CPUShares": False}, "1.41"), False),  # as rootless without cgroups
        (EngineInfo.of({**PODMAN, "CPUShares": True}, "1.41", "Podman"), False),
    ],
)
def test_a_share_of_the_cpu_is_changed_only_where_that_works(found: EngineInfo, expected: bool) -> None:
    assert found.changes_shares == expected
