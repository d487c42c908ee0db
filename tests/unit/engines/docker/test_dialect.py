"""Requests in Podman's words, and for cgroup v1: the one difference each, and nothing else."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_tools.engines.docker.payload import container_config, local_log
from agent_tools.engines.docker.podman_form import (
    MOST_PROCESSES,
    MOST_TCP,
    cgroup_v1_config,
    engine_name,
    limit_tcp,
    podman_config,
    processes_of_user,
)
from agent_tools.engines.guest import Guest
from agent_tools.engines.package_data import shipped
from agent_tools.errors import SandboxStartError
from agent_tools.limits import MIB
from tests.unit.engines.docker.test_payload import spec

FILES = Path("/usr/lib/agent_tools/docker")


def asked(guest: int = 10001, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The host's part of a request, in Docker's words and in Podman's."""
    config = container_config(spec(guest, **options), "<the profile>")
    return config["HostConfig"], podman_config(config, FILES, 1000)["HostConfig"]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Api-Version": "1.41", "Libpod-Api-Version": "4.3.1"}, "Podman"),
        ({"Api-Version": "1.47"}, "Docker"),
        ({}, "Docker"),
    ],
)
def test_an_engine_is_known_by_its_answers(headers: dict[str, str], expected: str) -> None:
    assert engine_name(headers) == expected


def test_podman_is_given_the_profile_by_its_path() -> None:
    _, podman = asked()
    assert podman["SecurityOpt"] == ["no-new-privileges:true", f"seccomp={FILES}/seccomp.json"]


def test_folders_in_memory_have_no_owner_and_are_open_to_the_guest() -> None:
    docker, podman = asked()
    own = {target: options for target, options in docker["Tmpfs"].items() if target != "/dev/shm"}  # Podman's own
    assert own.keys() < podman["Tmpfs"].keys()
    for target, options in own.items():
        size = next(option for option in options.split(",") if option.startswith("size="))
        words = podman["Tmpfs"][target].split(",")
        assert {size, "mode=1777", "notmpcopyup", "nosuid", "nodev", "noexec"} <= set(words)
        assert not [word for word in words if word.startswith(("uid=", "gid=", "nr_inodes="))]


def test_they_are_the_guests_own_where_it_is_root_by_a_rootless_engine() -> None:
    _, podman = asked(guest=0)
    assert "mode=0700" in podman["Tmpfs"]["/home/sandbox"].split(",")


def test_a_guest_of_a_rootless_engine_has_its_limits_set_by_a_shell() -> None:
    config = container_config(spec(0, open_files=64 * 1024, file_size=MIB), "")
    *shell, _, _ = podman_config({**config, "Cmd": ["-c", "ulimit -Hc; ulimit -Hf"]}, FILES, 1000)["Cmd"]
    done = subprocess.run([*shell, "/bin/sh", "-c", "ulimit -Hc; ulimit -Hf"], capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (["0", str(MIB // 512)], "")
    assert podman_config(container_config(spec(), ""), FILES, 1000)["Cmd"] == config["Cmd"]
    environ = subprocess.run([*shell, "/usr/bin/env"], capture_output=True, text=True, env={}).stdout
    assert "PWD" not in environ


def test_folders_that_podman_adds_are_read_only_or_bounded() -> None:
    _, podman = asked()
    assert podman["Tmpfs"]["/run"].startswith("ro,")
    assert podman["Tmpfs"]["/var/tmp"] == podman["Tmpfs"]["/tmp"]
    assert "size=" in podman["Tmpfs"]["/tmp"]


def test_names_of_the_host_stay_out() -> None:
    docker, podman = asked()
    added = podman["Mounts"][len(docker["Mounts"]) :]
    assert [(each["Source"], each["Target"], each["ReadOnly"]) for each in added] == [
        (f"{FILES}/hosts", "/etc/hosts", True),
        (f"{FILES}/resolv.conf", "/etc/resolv.conf", True),
    ]
    assert "nameserver" not in shipped("docker/resolv.conf").read_text()
    assert {line.split()[0] for line in shipped("docker/hosts").read_text().splitlines()} == {"127.0.0.1", "::1"}


def test_a_network_of_the_engine_keeps_its_names() -> None:
    docker, podman = asked(network="lab")
    assert podman["Mounts"] == docker["Mounts"]


def test_only_what_is_to_be_diagnosed_has_a_log_and_a_bounded_one() -> None:
    _, podman = asked()
    assert podman["LogConfig"] == {"Type": "none"}
    config = container_config(spec(), "")
    config["HostConfig"].update(AutoRemove=False, LogConfig=local_log(spec().isolation))
    kept = podman_config(config, FILES, 1000)["HostConfig"]["LogConfig"]
    assert kept == {"Type": "k8s-file", "Config": {"max-size": config["HostConfig"]["LogConfig"]["Config"]["max-size"]}}


def test_all_else_is_as_docker_is_asked() -> None:
    config = container_config(replace(spec(), guest=Guest((5, 6), (5, 6))), "")
    before = json.dumps(config)
    podman = podman_config(config, FILES, 1000)
    assert json.dumps(config) == before, "the request given was changed"
    added = {"Name": "nproc", "Soft": 1000, "Hard": 1000}
    assert podman["HostConfig"].pop("Ulimits") == [*config["HostConfig"].pop("Ulimits"), added]
    for name in ("SecurityOpt", "Tmpfs", "Mounts", "LogConfig"):
        assert podman["HostConfig"].pop(name) != config["HostConfig"].pop(name)
    assert podman.pop("StopTimeout") == 0
    assert podman == config


def test_an_oci_runtime_that_podman_would_not_use_is_refused() -> None:
    with pytest.raises(SandboxStartError, match="--runtime runsc"):
        asked(runtime="runsc")


def test_processes_are_bounded() -> None:
    assert 0 < processes_of_user() <= MOST_PROCESSES


def test_on_cgroup_v1_the_buffers_of_tcp_are_bounded() -> None:
    config = container_config(spec(), "")
    found = cgroup_v1_config(config, "5.15.0-91-generic")
    added = {name: value for name, value in found["HostConfig"].items() if config["HostConfig"].get(name) != value}
    assert added == {
        "KernelMemoryTCP": 64 * MIB,
        "Sysctls": {"net.ipv4.tcp_rmem": "4096 131072 262144", "net.ipv4.tcp_wmem": "4096 16384 262144"},
    }
    assert {**found, "HostConfig": config["HostConfig"]} == config


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        ("4.14.1", {}),
        ("3.10.0-1160.el7", {}),
        ("?", {}),
        ("6.1", {"runtime": "runsc"}),
        ("6.1", {"network": "own"}),
    ],
)
def test_settings_that_would_fail_the_start_are_not_asked_for(kernel: str, options: dict[str, Any]) -> None:
    assert "Sysctls" not in cgroup_v1_config(container_config(spec(**options), ""), kernel)["HostConfig"]


@pytest.mark.parametrize("controllers", ["memory", "cpu,memory", "memory,cpu"])
def test_the_limit_of_tcp_is_set_in_the_containers_own_cgroup(tmp_path: Path, controllers: str) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(f"9:pids:/docker/other\n4:{controllers}:/docker/abc\n0::/docker/other\n")
    limit = tmp_path / "memory" / "docker" / "abc" / "memory.kmem.tcp.limit_in_bytes"
    limit.parent.mkdir(parents=True)
    limit_tcp(7, tmp_path, tmp_path)
    assert int(limit.read_text()) == MOST_TCP
    limit_tcp(8, tmp_path, tmp_path)  # a process that has ended
    assert int(limit.read_text()) == MOST_TCP
