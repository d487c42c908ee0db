"""Facts about an engine, from its own answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_tools.engines.docker.podman_form import EngineName


@dataclass(frozen=True)
class EngineInfo:
    """The answers of `docker info` and `docker version` that matter here.

    `runtimes` lists the engine's OCI runtimes, its default first; for Podman only the one it uses, since it lists all
    that exist.
    `changes_shares`: the engine can change the CPU shares of a running container.
    """

    version: str
    api_version: str
    runtimes: tuple[str, ...]
    is_rootless: bool
    has_userns_remap: bool
    cgroup_version: str
    storage_driver: str
    kernel: str
    memory_limited: bool
    is_desktop: bool = False
    name: EngineName = "Docker"
    changes_shares: bool = True

    @classmethod
    def of(cls, info: Mapping[str, Any], api_version: str, name: EngineName = "Docker") -> EngineInfo:
        """Read an answer of `docker info`."""
        options = " ".join(info.get("SecurityOptions") or [])
        is_rootless = "name=rootless" in options or bool(info.get("Rootless"))  # the latter is Podman's name
        cgroup_version = str(info.get("CgroupVersion", "?"))
        ignores_limits = name == "Podman" and is_rootless and cgroup_version == "1"  # although it claims to have them
        return cls(
            version=info.get("ServerVersion", "?"),
            api_version=api_version,
            runtimes=_runtimes(info, name),
            is_rootless=is_rootless,
            has_userns_remap="name=userns" in options,
            cgroup_version=cgroup_version,
            storage_driver=info.get("Driver", "?"),
            kernel=info.get("KernelVersion", "?"),
            memory_limited=bool(info.get("MemoryLimit")) and not ignores_limits,
            is_desktop=info.get("OperatingSystem") == "Docker Desktop",
            name=name,
            changes_shares=name == "Docker" and bool(info.get("CPUShares", True)),
        )


def _runtimes(info: Mapping[str, Any], name: EngineName) -> tuple[str, ...]:
    default = str(info.get("DefaultRuntime") or "")
    if name == "Podman":
        return (default or "?",)
    return tuple(sorted(info.get("Runtimes") or {}, key=lambda each: each != default))
