"""An engine about itself, as far as it matters here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_tools.runtime.docker.dialect import EngineName


@dataclass(frozen=True)
class EngineInfo:
    """The answers of `docker info` and `docker version` that matter here.

    `runtimes` are those it knows; of Podman's the one it uses, since it names all that it could. `changes_shares`: it
    can give a container another share of the CPU while that runs.
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
        """The facts in an answer of `docker info`."""
        options = " ".join(info.get("SecurityOptions") or [])
        is_rootless = "name=rootless" in options or bool(info.get("Rootless"))  # the latter is Podman's word
        cgroup_version = str(info.get("CgroupVersion", "?"))
        ignores_limits = name == "Podman" and is_rootless and cgroup_version == "1"  # though it says that it has them
        return cls(
            version=info.get("ServerVersion", "?"),
            api_version=api_version,
            runtimes=(info.get("DefaultRuntime", "?"),) if name == "Podman" else tuple(info.get("Runtimes") or {}),
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
