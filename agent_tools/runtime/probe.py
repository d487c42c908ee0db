"""What the host can see of an engine and of a running sandbox: facts with a verdict, never the guest's own words."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agent_tools.runtime.docker.info import EngineInfo
from agent_tools.runtime.engine import Isolation
from agent_tools.settings import MIB

OLDEST_ENGINE = (20, 10)
WELL_PATCHED_ENGINE = (25, 0)


@dataclass(frozen=True)
class Check:
    """One fact with a verdict, and what to do about it."""

    name: str
    verdict: Literal["ok", "warn", "fail"]
    found: str
    advice: str = ""


def engine_checks(info: EngineInfo) -> Iterator[Check]:
    """Checks of the engine."""
    version = tuple(int(part) for part in re.findall(r"\d+", info.version)[:2])
    if version < OLDEST_ENGINE:
        yield Check("engine", "fail", f"Docker {info.version}", "Docker 20.10 or newer is needed.")
    elif version < WELL_PATCHED_ENGINE:
        advice = "Old: it may lack fixes of runc and the engine, unless its distribution carries them."
        yield Check(
            "engine", "warn", f"Docker {info.version}, API {info.api_version}, cgroup v{info.cgroup_version}", advice
        )
    else:
        yield Check("engine", "ok", f"Docker {info.version}, API {info.api_version}, cgroup v{info.cgroup_version}")
    yield Check("kernel", "ok", info.kernel)
    if info.is_rootless:
        yield Check("engine's privileges", "ok", "rootless")
    else:
        yield Check(
            "engine's privileges",
            "warn",
            "rootful",
            "Whoever may use this engine is root here. A rootless one is safer: docs.docker.com/go/rootless",
        )
    yield Check("OCI runtimes", "ok", ", ".join(info.runtimes) or "runc")
    if info.has_userns_remap and os.getuid() == 0:
        advice = (
            "work_dir is given to a uid that sandboxes do not have here. Use an engine without it, or a rootless one."
        )
        yield Check("user namespaces", "fail", "userns-remap", advice)
    if not info.memory_limited:
        yield Check("memory limits", "fail", "not supported", "Enable the memory cgroup on this host (or delegate it).")
    pattern = _read("/proc/sys/kernel/core_pattern").strip()
    if pattern.startswith("|"):
        yield Check(
            "core dumps", "warn", "piped to a host program", "The core limit of 0 does not hold for pipes; see core(5)."
        )


def sandbox_checks(facts: dict[str, Any], isolation: Isolation) -> Iterator[Check]:
    """Checks of one running sandbox: its container's settings, and its processes in the host's /proc."""
    host = facts["HostConfig"]
    security = " ".join(host.get("SecurityOpt") or [])
    yield _expect("network", host["NetworkMode"], isolation.network)
    yield _expect("published ports", len(facts["NetworkSettings"].get("Ports") or {}), 0)
    yield _expect("privileged", host["Privileged"], False)
    yield _expect("root file system", "read-only" if host["ReadonlyRootfs"] else "writable", "read-only")
    yield _expect("capabilities dropped", host.get("CapDrop"), ["ALL"])
    yield _expect("own seccomp profile", "seccomp=" in security and "unconfined" not in security, True)
    yield _expect("memory limit", f"{host['Memory'] / MIB:.0f} MiB", f"{isolation.memory / MIB:.0f} MiB")
    yield _expect("swap beyond it", f"{(host['MemorySwap'] - host['Memory']) / MIB:.0f} MiB", "0 MiB")
    yield _expect("CPU limit", host["NanoCpus"] / 1e9, isolation.cpus)
    yield _expect("process limit", host["PidsLimit"], isolation.pids)
    yield from _process_checks(facts["State"]["Pid"])


def _process_checks(pid: int) -> Iterator[Check]:
    status = dict(re.findall(r"^(\w+):\s*(.*)$", _read(f"/proc/{pid}/status"), re.MULTILINE))
    if not status:
        yield Check("processes", "warn", "not visible from here", "The engine runs elsewhere; run doctor on its host.")
        return
    yield _expect("runs as root", status["Uid"].split()[0] == "0", False)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        yield _expect(name, int(status[name], 16), 0)
    yield _expect("NoNewPrivs", status.get("NoNewPrivs"), "1")
    yield _expect("Seccomp filter", status.get("Seccomp"), "2")


def _expect(name: str, found: object, wanted: object) -> Check:
    if found == wanted:
        return Check(name, "ok", str(found))
    return Check(name, "fail", str(found), f"Expected {wanted}. Do not run code you do not trust on this engine.")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
