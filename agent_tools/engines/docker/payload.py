"""The request that creates a sandbox: a SandboxSpec as the Docker Engine API's container configuration.

Pure functions, so that one test can check the whole request. Field names: https://docs.docker.com/reference/api/engine/
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

from agent_tools.engines.engine import (
    COMMAND,
    GUEST_HOME,
    GUEST_RUN_DIR,
    GUEST_SESSION,
    GUEST_SKILLS,
    GUEST_WORK_DIR,
    MAX_SKILL_BYTES,
    Isolation,
    SandboxSpec,
    environment,
)
from agent_tools.engines.oci_runtime import chosen, kind_of
from agent_tools.engines.volumes import Volume
from agent_tools.errors import SandboxStartError
from agent_tools.guest.wire.gvisor import engine_limit
from agent_tools.guest.wire.words import WORK_DIR_NAMES
from agent_tools.limits import KIB, MIB
from agent_tools.machine.machine import IS_LINUX

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
    run_dir = [_bind(str(spec.run_dir), GUEST_RUN_DIR, read_only=True)] if spec.run_dir else []
    names = (GUEST_WORK_DIR, *WORK_DIR_NAMES) if spec.work_dir else ()
    work_dir = [_bind(str(spec.work_dir), name, read_only=False) for name in names]
    skills = spec.skills if spec.work_dir else ()
    below_skills = [_bind(str(each), f"{GUEST_SKILLS}/{each.name}", read_only=True) for each in skills]
    return run_dir + work_dir + below_skills + [_volume(each) for each in spec.volumes]


def _volume(volume: Volume) -> dict[str, Any]:
    """Return the mount of a volume. What is mounted below a folder stays out: it would not become read-only."""
    if volume.folder is None:
        named = {"Type": "volume", "Source": volume.source, "VolumeOptions": {"NoCopy": True}}
        return {**named, "Target": volume.target, "ReadOnly": not volume.is_writable}
    mount = _bind(volume.source, volume.target, read_only=not volume.is_writable)
    mount["BindOptions"]["NonRecursive"] = True
    return mount


def _tmpfs(spec: SandboxSpec) -> dict[str, str]:
    limits = spec.isolation
    owner = "uid={},gid={},mode=0700".format(*spec.guest.inside)
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


def _bind(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    """Return a mount that fails if its source is missing (a `Binds` entry would create it, owned by root)."""
    options = {"Propagation": "rprivate"}
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only, "BindOptions": options}


def _gpus(gpus: int | str) -> dict[str, Any]:
    return {"Count": -1 if gpus == "all" else gpus, "Capabilities": [["gpu"]]}


# Converts requests from Docker's form to Podman's, whose API differs.
#
# Podman's (docs.podman.io/en/latest/_static/api.html, the compatible part) differs in these points:
#
# * a seccomp profile is the path of a file that the engine reads, where Docker takes the profile itself;
# * a tmpfs cannot be given an owner: root owns it, so it must be open to all if the guest is another user;
# * nor can it be given a number of files; /dev/shm is mounted by Podman itself;
# * under a read-only root /run is writable and unbounded, unless it is mounted otherwise;
# * /etc/hosts has the names that the engine's host has in its own, and the host's address, unless it is mounted;
# * limits of a process (ulimit) are ignored by a rootless engine, whose guest is root in there: a shell sets them;
# * RLIMIT_NPROC is 1048576 by default, which an engine without CAP_SYS_RESOURCE may not set;
# * a bounded log is `k8s-file`, and is shown as one without a bound: only a container that is to be diagnosed has one;
# * a requested OCI runtime is silently ignored: here it is an error;
# * the CPU shares of a running container cannot be changed (info.py): no container starts with fewer.
#
# An engine on cgroup v1 does not count TCP buffers in the memory limit, even on a sandbox's own loopback. Three layers
# limit them there: a limit in the request, which crun applies, but not runc since 1.0; the limit of the cgroup, which
# this process sets if it is root; and a small size of each buffer.


EngineName = Literal["Docker", "Podman"]

PODMAN_HEADER = "Libpod-Api-Version"  # in every answer of Podman, with its version
MOST_PROCESSES = 32_768  # the kernel's default maximum of pids; a sandbox has its own, lower limit
MOST_TCP = 64 * MIB  # bytes of all TCP buffers of a sandbox
_TCP_BUFFERS = {"net.ipv4.tcp_rmem": "4096 131072 262144", "net.ipv4.tcp_wmem": "4096 16384 262144"}
_OWN_TCP_BUFFERS = (4, 15)  # the first Linux where a network namespace has these settings
_MEMORY_CGROUP = re.compile(r"^\d+:(?:[^:]*,)?memory(?:,[^:]*)?:/(.+)$", re.MULTILINE)
_ULIMIT_BLOCK = 512  # bytes: the unit of `ulimit -f` (POSIX)
_SEALED = "ro,nosuid,nodev,noexec,size=4096,mode=0755,notmpcopyup"
_OWN_FILES = ("hosts", "resolv.conf")  # files of /etc that Podman fills from the host's


def engine_name(headers: Mapping[str, str]) -> EngineName:
    """Return the name of the engine that sent an answer with these headers."""
    return "Podman" if PODMAN_HEADER in headers else "Docker"


def podman_config(config: Mapping[str, Any], files: Path, processes: int) -> dict[str, Any]:
    """Return a request to create a container in Podman's form.

    `files` is the engine's path of the folder with the seccomp profile and the files to mount in /etc; `processes` is
    the limit for one user in all containers (RLIMIT_NPROC).

    Raises:
        SandboxStartError: it asks for an OCI runtime, which Podman would silently ignore.
    """
    asked: dict[str, Any] = deepcopy(dict(config))
    host = asked["HostConfig"]
    if runtime := host.get("Runtime"):
        raise SandboxStartError(
            f"Podman does not let clients choose an OCI runtime: run its service with --runtime {runtime}."
        )
    host["SecurityOpt"] = [_security(option, files / "seccomp.json") for option in host["SecurityOpt"]]
    is_root = asked["User"].partition(":")[0] == "0"
    tmpfs = {at: _mounted_tmpfs(options, is_root) for at, options in host["Tmpfs"].items() if at != SHM}
    host["Tmpfs"] = {"/run": _SEALED, **tmpfs}  # which Podman adds under a read-only root, as it does /tmp and /var/tmp
    if asked["NetworkDisabled"]:
        host["Mounts"] += [_bind(str(files / name), f"/etc/{name}", read_only=True) for name in _OWN_FILES]
    host["Ulimits"].append({"Name": "nproc", "Soft": processes, "Hard": processes})
    if is_root:
        asked["Cmd"] = _limited(asked["Cmd"], {each["Name"]: each["Hard"] for each in host["Ulimits"]})
    asked["StopTimeout"] = 0  # seconds: Podman waits for PID 1 to end also where a container is removed by force
    host["LogConfig"] = {"Type": "none"} if host["AutoRemove"] else _log(host["LogConfig"])
    return asked


def cgroup_v1_config(config: Mapping[str, Any], kernel: str) -> dict[str, Any]:
    """Return a request to create a container on cgroup v1, with limits on TCP buffers.

    `kernel` is the kernel's version.
    """
    host = dict(config["HostConfig"])
    host["KernelMemoryTCP"] = MOST_TCP
    version = tuple(map(int, re.findall(r"\d+", kernel)[:2]))
    if config["NetworkDisabled"] and "Runtime" not in host and version >= _OWN_TCP_BUFFERS:
        host["Sysctls"] = _TCP_BUFFERS
    return {**config, "HostConfig": host}


def limit_tcp(pid: int, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> None:
    """Limit the TCP buffers of a container by its cgroup (v1), if this process may; `pid` is its PID 1."""
    with contextlib.suppress(OSError):
        if found := _MEMORY_CGROUP.search((proc / str(pid) / "cgroup").read_text()):
            limit = cgroup / "memory" / found[1] / "memory.kmem.tcp.limit_in_bytes"
            limit.write_text(str(MOST_TCP))


def processes_of_user() -> int:
    """Return how many processes one user may have in all containers: the caller's limit, up to the kernel's default."""
    if not IS_LINUX:
        return MOST_PROCESSES
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    return MOST_PROCESSES if hard == resource.RLIM_INFINITY else min(hard, MOST_PROCESSES)


def _security(option: str, profile: Path) -> str:
    return f"seccomp={profile}" if option.startswith("seccomp=") else option


def _mounted_tmpfs(options: str, is_root: bool) -> str:
    """Return the tmpfs options without an owner, and so that Podman does not copy the image's folder into it."""
    kept = [option for option in options.split(",") if not option.startswith(("uid=", "gid=", "mode=", "nr_inodes="))]
    asked = next((option for option in options.split(",") if option.startswith("mode=")), "mode=0755")
    return ",".join([*kept, asked if is_root else "mode=1777", "notmpcopyup"])


def _limited(command: Sequence[str], most: Mapping[str, int]) -> list[str]:
    """Return the command behind a shell that lowers its own limits. A limit above the allowed one is no error."""
    files = f"{{ ulimit -n {most['nofile']} 2>/dev/null || :; }}"
    sizes = f"ulimit -c {most['core']} && ulimit -f {most['fsize'] // _ULIMIT_BLOCK}"
    script = f'{sizes} && {files} && unset PWD && exec "$@"'  # the shell would add PWD to the environment
    return ["/bin/sh", "-c", script, "sh", *command]


def _log(local: Mapping[str, Any]) -> dict[str, Any]:
    return {"Type": "k8s-file", "Config": {"max-size": local["Config"]["max-size"]}}
