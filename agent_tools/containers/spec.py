"""The description of a container to be made, and of the interpreter that runs in one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_tools.code_mode.toolset import Toolset
from agent_tools.containers.config import MEMORY_TIERS, ContainersConfig
from agent_tools.containers.failures import MemoryRefused
from agent_tools.containers.networks import network_cfg
from agent_tools.containers.records import Container
from agent_tools.limits import MIB

WORK_DIR_URL = "sandbox:/mnt/data"


@dataclass(frozen=True)
class ContainerSpec:
    """A container to be made. `idle_minutes` is None for the default; `domains` are those it may reach.

    `origin` is the part of the gateway that makes it, '' for its client.
    """

    name: str
    memory: str | None = None
    idle_minutes: float | None = None
    domains: tuple[str, ...] = ()
    origin: str = ""


def check_memory(memory: str | None, config: ContainersConfig) -> str:
    """Return the memory tier of this name, or the usual one.

    Raises:
        MemoryRefused: there is no such tier, or it is not given here.
    """
    tier = memory or config.memory
    allowed = [name for name, size in MEMORY_TIERS.items() if size <= MEMORY_TIERS[config.max_memory]]
    if tier not in allowed:
        raise MemoryRefused(f"memory_limit {tier!r:.20} is not available here: use {', '.join(allowed)}.")
    return tier


def usual_cfg(config: ContainersConfig, work_dir: Path) -> dict[str, Any]:
    """Return the `cfg` of an interpreter with the usual memory and no network, for which sandboxes are kept ready."""
    return {
        "work_dir": str(work_dir),
        "memory": MEMORY_TIERS[config.memory],
        "timeout": config.timeout,
        "static_url": WORK_DIR_URL,
        "packages": list(config.packages),
        "debian_packages": list(config.debian_packages),
        "flavour": config.flavour,
        "limits": _limits(config, config.max_container_bytes, config.max_variables_bytes),
        "idle_stop": config.idle_stop,
        **({"runtime": config.runtime} if config.runtime else {}),
        **({"hostcalls": Toolset(style="sync")} if config.takes_functions else {}),
        **pool_cfg(config),
    }


def pool_cfg(config: ContainersConfig) -> dict[str, Any]:
    """Return the options that have sandboxes kept ready, if any are to be."""
    return {"pool": config.pool, "preload": list(config.preload)} if config.pool else {}


def interpreter_cfg(config: ContainersConfig, container: Container, work_dir: Path, room: int) -> dict[str, Any]:
    """Return the `cfg` of a container's interpreter; `room` are the bytes that all containers of its owner may add."""
    most = min(config.max_container_bytes, container.bytes + room)
    cfg = {**usual_cfg(config, work_dir), "limits": _limits(config, most, room)}
    if container.memory_limit == config.memory and not container.network:
        return cfg
    own = {"memory": MEMORY_TIERS[container.memory_limit], **network_cfg(container.network, config)}
    return {**{name: value for name, value in cfg.items() if name not in pool_cfg(config)}, **own}


def _limits(config: ContainersConfig, files: int, variables: int) -> dict[str, float]:
    """Return the limits of a container that may have so many bytes of files, and as many more of kept variables."""
    return {
        "max_work_dir_bytes": max(files, MIB),
        "min_disk_free": config.min_disk_free,
        "max_variables_bytes": max(min(config.max_variables_bytes, variables), 1),
        "max_archive_bytes": 2 * config.max_variables_bytes + MIB,  # which hold nothing else here
        "variables_timeout": config.variables_timeout,
        "cancel_grace": config.cancel_grace,
    }
