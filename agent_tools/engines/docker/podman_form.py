"""Converts requests from Docker's form to Podman's, whose API differs.

Podman's (docs.podman.io/en/latest/_static/api.html, the compatible part) differs in these points:

* a seccomp profile is the path of a file that the engine reads, where Docker takes the profile itself;
* a tmpfs cannot be given an owner: root owns it, so it must be open to all if the guest is another user;
* nor can it be given a number of files; /dev/shm is mounted by Podman itself;
* under a read-only root /run is writable and unbounded, unless it is mounted otherwise;
* /etc/hosts has the names that the engine's host has in its own, and the host's address, unless it is mounted;
* limits of a process (ulimit) are ignored by a rootless engine, whose guest is root in there: a shell sets them;
* RLIMIT_NPROC is 1048576 by default, which an engine without CAP_SYS_RESOURCE may not set;
* a bounded log is `k8s-file`, and is shown as one without a bound: only a container that is to be diagnosed has one;
* a requested OCI runtime is silently ignored: here it is an error;
* the CPU shares of a running container cannot be changed (engine_info.py): no container starts with fewer.

An engine on cgroup v1 does not count TCP buffers in the memory limit, even on a sandbox's own loopback. Three layers
limit them there: a limit in the request, which crun applies, but not runc since 1.0; the limit of the cgroup, which
this process sets if it is root; and a small size of each buffer.
"""

from __future__ import annotations

import contextlib
import re
import resource
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

from agent_tools.engines.docker.payload import SHM, bind_of
from agent_tools.errors import SandboxStartError
from agent_tools.limits import MIB
from agent_tools.machine.machine import IS_LINUX

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
        host["Mounts"] += [bind_of(str(files / name), f"/etc/{name}", read_only=True) for name in _OWN_FILES]
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
