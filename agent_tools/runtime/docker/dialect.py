"""The dialects of the engine API: Docker's, in which requests are written (payload.py), and Podman's, which differs.

Podman's API (docs.podman.io, _static/api.html, the compatible part) differs where a request of ours touches it:

* a seccomp profile is the path of a file that the engine reads, where Docker takes the profile itself;
* a tmpfs cannot be given an owner: it is root's, so that it has to be open to all where the guest is another user;
* under a read-only root /run and /var/tmp are writable and unbounded, unless they are mounted otherwise;
* RLIMIT_NPROC is 1048576 unless it is said, which an engine without CAP_SYS_RESOURCE may not set;
* a bounded log is `k8s-file`;
* a container's share of the CPU is not changed while it runs, and `top` names columns in words of its own.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

EngineName = Literal["Docker", "Podman"]

PODMAN_HEADER = "Libpod-Api-Version"  # in every answer of Podman's, and its version
PIDS_COLUMN: Mapping[EngineName, str] = {"Docker": "-eo pid", "Podman": "hpid"}
"""The argument with which `top` tells the pids as the engine's host numbers them."""
MOST_PROCESSES = 32_768  # as many as a kernel numbers by default; a sandbox has its own, lower limit
_SEALED = "ro,nosuid,nodev,noexec,size=4096,mode=0755"
_OWN_TMPFS = ("/run", "/var/tmp")  # that Podman adds under a read-only root; the third is /tmp, which we mount


def engine_name(headers: Mapping[str, str]) -> EngineName:
    """The engine that sent an answer with these headers."""
    return "Podman" if PODMAN_HEADER in headers else "Docker"


def podman_config(config: Mapping[str, Any], profile: Path, processes: int) -> dict[str, Any]:
    """A request to create a container in Podman's words.

    `profile` is the seccomp profile's file, `processes` what one user may have in all containers (RLIMIT_NPROC).
    """
    config = deepcopy(dict(config))
    host = config["HostConfig"]
    host["SecurityOpt"] = [_security(option, profile) for option in host["SecurityOpt"]]
    is_root = config["User"].partition(":")[0] == "0"
    tmpfs = {target: _tmpfs(options, is_root) for target, options in host["Tmpfs"].items()}
    host["Tmpfs"] = {**dict.fromkeys(_OWN_TMPFS, _SEALED), **tmpfs}
    host["Ulimits"].append({"Name": "nproc", "Soft": processes, "Hard": processes})
    host.pop("CpuShares", None)
    if host["LogConfig"]["Type"] != "none":
        host["LogConfig"] = {"Type": "k8s-file", "Config": {"max-size": host["LogConfig"]["Config"]["max-size"]}}
    return config


def processes_of_user() -> int:
    """The number of processes that one user may have in all containers: what the caller may, up to a kernel's usual."""
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    return MOST_PROCESSES if hard == resource.RLIM_INFINITY else min(hard, MOST_PROCESSES)


def _security(option: str, profile: Path) -> str:
    return f"seccomp={profile}" if option.startswith("seccomp=") else option


def _tmpfs(options: str, is_root: bool) -> str:
    """The options without an owner, and without what the image has in that folder, which Podman would copy."""
    kept = [option for option in options.split(",") if not option.startswith(("uid=", "gid=", "mode="))]
    asked = next((option for option in options.split(",") if option.startswith("mode=")), "mode=0755")
    return ",".join([*kept, asked if is_root else "mode=1777", "notmpcopyup"])
