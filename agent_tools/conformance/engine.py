"""Checks of an engine: its version and privileges, the limits it can set, and the bridge of its containers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent_tools.engines.docker.engine_info import EngineInfo
from agent_tools.engines.docker.podman_form import EngineName
from agent_tools.engines.oci_runtime import INSTALL_GVISOR, kind_of
from agent_tools.machine.machine import read_text

OLDEST_ENGINE: Mapping[EngineName, tuple[int, int]] = {"Docker": (20, 10), "Podman": (4, 3)}
WELL_PATCHED_ENGINE: Mapping[EngineName, tuple[int, int]] = {"Docker": (25, 0), "Podman": (5, 0)}


@dataclass(frozen=True)
class Check:
    """One fact with a verdict, and advice if the verdict is bad."""

    name: str
    verdict: Literal["ok", "warn", "fail"]
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Machine:
    """The part of this machine that an engine on it depends on.

    Attributes:
        core_pattern: where the kernel sends core dumps; see core(5).
        interfaces: the network interfaces; None unless an engine with privileges runs here and shares them.
    """

    core_pattern: str = ""
    interfaces: frozenset[str] | None = None


def read_machine(root: Path = Path("/")) -> Machine:
    """Read this machine's facts; what cannot be read is absent."""
    pid = read_text(root / "var/run/docker.pid").strip()
    has_engine = pid.isdecimal() and read_text(root / "proc" / pid / "comm").strip() == "dockerd"
    return Machine(
        core_pattern=read_text(root / "proc/sys/kernel/core_pattern").strip(),
        interfaces=frozenset(each.name for each in (root / "sys/class/net").glob("*")) if has_engine else None,
    )


def engine_checks(info: EngineInfo, bridge: str = "", machine: Machine | None = None) -> Iterator[Check]:
    """Yield the checks of an engine. `bridge` is the interface of its default network, or ''."""
    machine = machine or read_machine()
    yield _version(info)
    yield Check("kernel", "ok", info.kernel)
    yield _privileges(info)
    yield _runtimes(info)
    yield from (problem for find in _PROBLEMS if (problem := find(info, bridge, machine)))


def _version(info: EngineInfo) -> Check:
    version = tuple(int(part) for part in re.findall(r"\d+", info.version)[:2])
    oldest = OLDEST_ENGINE[info.name]
    if version < oldest:
        advice = f"{info.name} {oldest[0]}.{oldest[1]} or newer is needed."
        return Check("engine", "fail", f"{info.name} {info.version}", advice)
    found = f"{info.name} {info.version}, API {info.api_version}, cgroup v{info.cgroup_version}"
    if version < WELL_PATCHED_ENGINE[info.name]:
        advice = "Old: it may lack fixes of runc and the engine, unless its distribution carries them."
        return Check("engine", "warn", found, advice)
    return Check("engine", "ok", found)


def _runtimes(info: EngineInfo) -> Check:
    runtimes = info.runtimes or ("runc",)
    has_gvisor = any(kind_of(each) == "gvisor" for each in runtimes)
    advice = "" if has_gvisor else f"For isolation='gvisor', {INSTALL_GVISOR}."
    return Check("OCI runtimes", "ok", f"{', '.join(runtimes)} (default: {runtimes[0]})", advice)


def _privileges(info: EngineInfo) -> Check:
    if info.is_rootless:
        return Check("engine's privileges", "ok", "rootless")
    advice = "Whoever may use this engine is root here. A rootless one is safer: docs.docker.com/go/rootless"
    return Check("engine's privileges", "warn", "rootful", advice)


def _user_namespaces(info: EngineInfo, _: str, __: Machine) -> Check | None:
    if not info.has_userns_remap:
        return None
    found = "userns-remap, without sandboxes: their users are the caller's, or of no account"
    return Check("user namespaces", "ok", found)


def _memory_limits(info: EngineInfo, _: str, __: Machine) -> Check | None:
    if info.memory_limited:
        return None
    return Check("memory limits", "fail", "not supported", "Enable the memory cgroup on this host (or delegate it).")


def _core_dumps(_: EngineInfo, __: str, machine: Machine) -> Check | None:
    if not machine.core_pattern.startswith("|"):
        return None
    advice = "The core limit of 0 does not hold for pipes; see core(5)."
    return Check("core dumps", "warn", "piped to a host program", advice)


def _bridge(info: EngineInfo, bridge: str, machine: Machine) -> Check | None:
    """Return a failure if the engine's bridge no longer exists on this machine.

    A rootless engine, or one in a virtual machine, has its own interfaces, which this machine does not show.
    """
    has_own = info.is_rootless or info.is_desktop or machine.interfaces is None
    if not bridge or has_own or bridge in (machine.interfaces or ()):
        return None
    advice = (
        "Containers with a network, as every image build has, fail. Another engine may have deleted the interface "
        "(dockerd --bridge=none does). Restart this engine: systemctl restart docker"
    )
    return Check("engine's bridge", "fail", f"{bridge} is gone", advice)


_PROBLEMS: tuple[Callable[[EngineInfo, str, Machine], Check | None], ...] = (
    _user_namespaces,
    _memory_limits,
    _core_dumps,
    _bridge,
)
