"""The exact request that creates a sandbox: a SandboxSpec as the Docker Engine API's container configuration.

Pure, so that one test can hold the whole of it. Field names: https://docs.docker.com/reference/api/engine/
"""

from __future__ import annotations

from typing import Any

from agent_tools.runtime.engine import (
    GUEST_HOME,
    GUEST_RUN_DIR,
    GUEST_SESSION,
    GUEST_WORK_DIR,
    Isolation,
    SandboxSpec,
)
from agent_tools.runtime.first_process import COMMAND, environment

SHARES, SHARES_AHEAD = 1024, 128  # of the CPU where it is short: the engine's default, and of what nobody waits for


def container_config(spec: SandboxSpec, seccomp_profile: str) -> dict[str, Any]:
    """The body of POST /containers/create. `seccomp_profile` is the profile's JSON text."""
    limits = spec.isolation
    uid, gid = spec.guest.inside
    over_stdio = spec.run_dir is None
    return {
        "Image": spec.image,
        "Cmd": [*COMMAND, "stdio"] if over_stdio else COMMAND,
        "Entrypoint": [],
        "User": f"{uid}:{gid}",
        "Hostname": "sandbox",
        "WorkingDir": "/",
        "Env": [f"{name}={value}" for name, value in environment(limits).items()],
        "Labels": dict(spec.labels),
        "Tty": False,
        "OpenStdin": over_stdio,
        "StdinOnce": over_stdio,  # the engine closes it when we go, however we go
        "NetworkDisabled": limits.engine_network == "none",
        "HostConfig": _host_config(spec, seccomp_profile),
    }


def local_log(limits: Isolation) -> dict[str, Any]:
    """A log driver that keeps a bounded file."""
    config = {"max-size": f"{max(1, limits.log // 1024)}k", "max-file": "1", "compress": "false"}
    return {"Type": "local", "Config": config}


def _host_config(spec: SandboxSpec, seccomp_profile: str) -> dict[str, Any]:
    limits = spec.isolation
    return {
        "NetworkMode": limits.engine_network,
        "IpcMode": "private",
        "Privileged": False,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges:true", f"seccomp={seccomp_profile}"],
        "ReadonlyRootfs": True,
        "Mounts": _mounts(spec),
        "Tmpfs": _tmpfs(spec),
        "Memory": limits.memory,
        "MemorySwap": limits.memory,  # equal: no swap
        "NanoCpus": round(limits.cpus * 1_000_000_000),
        "PidsLimit": limits.pids,
        **({"CpuShares": SHARES_AHEAD} if spec.is_ahead else {}),
        "ShmSize": limits.shm,
        "Ulimits": [
            {"Name": "nofile", "Soft": limits.open_files, "Hard": limits.open_files},
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "fsize", "Soft": limits.file_size, "Hard": limits.file_size},
        ],
        "LogConfig": {"Type": "none"} if spec.run_dir is None else local_log(limits),
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": True,
        **({"Runtime": limits.runtime} if limits.runtime else {}),
        **({"DeviceRequests": [_gpus(limits.gpus)]} if limits.gpus is not None else {}),
    }


def _mounts(spec: SandboxSpec) -> list[dict[str, Any]]:
    run_dir = [_bind(str(spec.run_dir), GUEST_RUN_DIR, read_only=True)] if spec.run_dir else []
    work_dir = [_bind(str(spec.work_dir), GUEST_WORK_DIR, read_only=False)] if spec.work_dir else []
    return run_dir + work_dir


def _tmpfs(spec: SandboxSpec) -> dict[str, str]:
    limits = spec.isolation
    owner = "uid={},gid={},mode=0700".format(*spec.guest.inside)
    work_dir = f"rw,nosuid,nodev,size={spec.work_dir_bytes},{owner}"
    return {
        "/tmp": f"rw,nosuid,nodev,noexec,size={limits.tmp},mode=1777",
        GUEST_HOME: f"rw,nosuid,nodev,noexec,size={limits.home},{owner}",
        **({} if spec.work_dir else {GUEST_WORK_DIR: work_dir}),
        **({GUEST_SESSION: f"rw,nosuid,nodev,exec,size={limits.installed},{owner}"} if limits.policy else {}),
    }


def _bind(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    """A mount that fails when its source is missing (a `Binds` entry would be created, owned by root)."""
    options = {"Propagation": "rprivate"}
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only, "BindOptions": options}


def _gpus(gpus: int | str) -> dict[str, Any]:
    return {"Count": -1 if gpus == "all" else gpus, "Capabilities": [["gpu"]]}
