"""The request that creates a sandbox: a SandboxSpec as the Docker Engine API's container configuration.

Pure functions, so that one test can check the whole request. Field names: https://docs.docker.com/reference/api/engine/
"""

from __future__ import annotations

import os
from typing import Any

from agent_tools.engines.engine import GUEST_RUN_DIR, GUEST_SKILLS, GUEST_WORK_DIR, MAX_SKILL_BYTES, SandboxSpec
from agent_tools.engines.first_process import COMMAND, GUEST_HOME, GUEST_SESSION, environment
from agent_tools.engines.isolation import Isolation
from agent_tools.engines.oci_runtime import chosen, kind_of
from agent_tools.engines.volumes import Volume
from agent_tools.guest.wire.gvisor import engine_limit
from agent_tools.guest.wire.words import WORK_DIR_NAMES
from agent_tools.limits import KIB

TEMPORARY_FILES, INSTALLED_FILES = 65_536, 262_144
"""The most files and folders in a tmpfs: each takes about 1 KiB of memory, beyond the size of the tmpfs."""
SHM = "/dev/shm"
PARENTS_OF_NAMES = tuple(os.path.dirname(name) for name in WORK_DIR_NAMES)
"""Folders in memory where work_dir is one: PID 1 makes the names there, as links, since no two mounts share a tmpfs."""
LINKS = 8  # the most files and folders in each
THREADS_OF_GVISOR, OWN_THREADS = 6, 256
"""The engine's limit counts gVisor's own threads, several for each thread of the code. RLIMIT_NPROC limits the code's:
gVisor counts them in each sandbox alone."""
SHARES, SHARES_AHEAD = 1024, 128  # CPU shares: the engine's default, and for sandboxes made ahead


def container_config(spec: SandboxSpec, seccomp_profile: str) -> dict[str, Any]:
    """Return the body of POST /containers/create. `seccomp_profile` is the profile's JSON text."""
    limits = spec.isolation
    uid, gid = spec.guest.container_ids
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
        "StdinOnce": over_stdio,  # the engine closes stdin when this process ends, in any way
        "NetworkDisabled": limits.engine_network == "none",
        "HostConfig": _host_config(spec, seccomp_profile),
    }


def local_log(limits: Isolation) -> dict[str, Any]:
    """Return a log driver with a bounded file."""
    config = {"max-size": f"{max(1, limits.log // 1024)}k", "max-file": "1", "compress": "false"}
    return {"Type": "local", "Config": config}


def _host_config(spec: SandboxSpec, seccomp_profile: str) -> dict[str, Any]:
    limits = spec.isolation
    runtime = chosen(limits, spec.guest.runtimes)
    is_gvisor = kind_of(runtime or "") == "gvisor"
    memory = engine_limit(limits.memory) if is_gvisor else limits.memory
    return {
        "NetworkMode": limits.engine_network,
        "IpcMode": "private",
        **({"GroupAdd": [str(group) for group in spec.groups]} if spec.groups else {}),
        "Privileged": False,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges:true", f"seccomp={seccomp_profile}"],
        "ReadonlyRootfs": True,
        "Mounts": _mounts(spec),
        "Tmpfs": _tmpfs(spec),
        "Memory": memory,
        "MemorySwap": memory,  # equal: no swap
        "NanoCpus": round(limits.cpus * 1_000_000_000),
        "PidsLimit": limits.pids * THREADS_OF_GVISOR + OWN_THREADS if is_gvisor else limits.pids,
        **({"CpuShares": SHARES_AHEAD} if spec.is_ahead else {}),
        "ShmSize": limits.shm,
        "Ulimits": [
            {"Name": "nofile", "Soft": limits.open_files, "Hard": limits.open_files},
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "fsize", "Soft": limits.file_size, "Hard": limits.file_size},
            *([{"Name": "nproc", "Soft": limits.pids, "Hard": limits.pids}] if is_gvisor else []),
        ],
        "LogConfig": {"Type": "none"} if spec.run_dir is None else local_log(limits),
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": True,
        **({"Runtime": runtime} if runtime else {}),
        **({"DeviceRequests": [_gpus(limits.gpus)]} if limits.gpus is not None else {}),
    }


def _mounts(spec: SandboxSpec) -> list[dict[str, Any]]:
    run_dir = [bind_of(str(spec.run_dir), GUEST_RUN_DIR, read_only=True)] if spec.run_dir else []
    names = (GUEST_WORK_DIR, *WORK_DIR_NAMES) if spec.work_dir else ()
    work_dir = [bind_of(str(spec.work_dir), name, read_only=False) for name in names]
    skills = spec.skills if spec.work_dir else ()
    below_skills = [bind_of(str(each), f"{GUEST_SKILLS}/{each.name}", read_only=True) for each in skills]
    return run_dir + work_dir + below_skills + [_volume(each) for each in spec.volumes]


def _volume(volume: Volume) -> dict[str, Any]:
    """Return the mount of a volume. What is mounted below a folder stays out: it would not become read-only."""
    if volume.folder is None:
        named = {"Type": "volume", "Source": volume.source, "VolumeOptions": {"NoCopy": True}}
        return {**named, "Target": volume.target, "ReadOnly": not volume.is_writable}
    mount = bind_of(volume.source, volume.target, read_only=not volume.is_writable)
    mount["BindOptions"]["NonRecursive"] = True
    return mount


def _tmpfs(spec: SandboxSpec) -> dict[str, str]:
    limits = spec.isolation
    owner = "uid={},gid={},mode=0700".format(*spec.guest.container_ids)
    few = f"nr_inodes={min(TEMPORARY_FILES, limits.memory // (16 * KIB))}"  # all take at most a quarter of the memory
    many = f"nr_inodes={min(INSTALLED_FILES, limits.memory // (8 * KIB))}"
    work_dir = f"rw,nosuid,nodev,size={spec.work_dir_bytes},{many},{owner}"
    links = f"rw,nosuid,nodev,noexec,size=4096,nr_inodes={LINKS},{owner[:-4]}0755"
    skills = f"rw,nosuid,nodev,exec,size={len(spec.skills) * MAX_SKILL_BYTES},{many},{owner}"
    return {
        **dict.fromkeys(("/tmp", "/var/tmp"), f"rw,nosuid,nodev,noexec,size={limits.tmp},{few},mode=1777"),
        SHM: f"rw,nosuid,nodev,noexec,size={limits.shm},{few},mode=1777",
        GUEST_HOME: f"rw,nosuid,nodev,noexec,size={limits.home},{few},{owner}",
        **({} if spec.work_dir else {GUEST_WORK_DIR: work_dir, **dict.fromkeys(PARENTS_OF_NAMES, links)}),
        **({} if spec.work_dir or not spec.skills else {GUEST_SKILLS: skills}),
        **({GUEST_SESSION: f"rw,nosuid,nodev,exec,size={limits.installed},{many},{owner}"} if limits.policy else {}),
    }


def bind_of(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    """Return a mount that fails if its source is missing (a `Binds` entry would create it, owned by root)."""
    options = {"Propagation": "rprivate"}
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only, "BindOptions": options}


def _gpus(gpus: int | str) -> dict[str, Any]:
    return {"Count": -1 if gpus == "all" else gpus, "Capabilities": [["gpu"]]}
