"""The description of a container to be made, and of its sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_tools.code_mode.toolset import Toolset
from agent_tools.containers.config import MEMORY_TIERS, ContainersConfig
from agent_tools.containers.failures import MemoryRefused
from agent_tools.containers.network import network_cfg
from agent_tools.containers.records import ALL_VOLUMES, ContainerRecord
from agent_tools.engines.volumes import Volume, chosen
from agent_tools.limits import MIB
from agent_tools.sandbox.audit import AuditLog
from agent_tools.sandbox.options import read_skills

if TYPE_CHECKING:
    from agent_tools.skills.skill import Skill

WORK_DIR_URL = "sandbox:/mnt/data"


@dataclass(frozen=True)
class ContainerSpec:
    """A container to be made. `idle_minutes` is None for the default; `domains` lists domains that it may reach.

    `origin` is the part of the gateway that makes it, '' for its client; `skills` maps the client's names to its own
    skills; `volumes` are as in its row.
    """

    name: str
    memory: str | None = None
    idle_minutes: float | None = None
    domains: tuple[str, ...] = ()
    origin: str = ""
    skills: Mapping[str, Skill] = field(default_factory=dict)
    volumes: str = ALL_VOLUMES

    @property
    def skills_text(self) -> str:
        """The skills in the format of a container's row: the client's name for each, and the path of its copy."""
        return " ".join(f"{given}={skill.digest}/{skill.name}" for given, skill in self.skills.items())


def check_memory(memory: str | None, config: ContainersConfig) -> str:
    """Return the memory tier of this name, or the usual one.

    Raises:
        MemoryRefused: there is no such tier, or it is not allowed here.
    """
    tier = memory or config.memory
    allowed = [name for name, size in MEMORY_TIERS.items() if size <= MEMORY_TIERS[config.max_memory]]
    if tier not in allowed:
        raise MemoryRefused(f"memory_limit {tier!r:.20} is not available here: use {', '.join(allowed)}.")
    return tier


def usual_cfg(config: ContainersConfig, work_dir: Path) -> dict[str, Any]:
    """Return the `cfg` of a sandbox with the usual memory and no network, for which sandboxes are kept ready."""
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
        **({"skills": list(config.known_skills)} if config.skills else {}),
        **({"volumes": config.volumes} if config.volumes else {}),
        **({"runtime": config.runtime} if config.runtime else {"isolation": config.isolation}),
        **({"hostcalls": Toolset(style="sync")} if config.takes_functions else {}),
        **pool_cfg(config),
    }


def pool_cfg(config: ContainersConfig) -> dict[str, Any]:
    """Return the options for the pool of ready sandboxes, if there is one."""
    return {"pool": config.pool, "preload": list(config.preload)} if config.pool else {}


def sandbox_cfg(
    config: ContainersConfig,
    container: ContainerRecord,
    work_dir: Path,
    room: int,
    volumes: tuple[Volume, ...] = (),
    **names: str,
) -> dict[str, Any]:
    """Return the `cfg` of a container's sandbox.

    `room` is how many bytes all containers of its owner may add; `volumes` are those that the owner may use; `names`
    are those of the owner in the audit log.
    """
    most = min(config.max_container_bytes, container.bytes + room)
    cfg = {**usual_cfg(config, work_dir), "limits": _limits(config, most, room)}
    if container.volumes != ALL_VOLUMES:
        volumes = chosen(volumes, container.volumes.split())
    cfg["volumes"] = volumes
    if config.audit:
        log = audit_log(config)
        cfg["audit"] = log.of(owner=container.owner, **names, container=container.id, origin=container.origin)
    is_usual = container.memory_limit == config.memory and volumes in ((), config.volumes)
    if is_usual and not container.network and not container.skills:
        return cfg
    own = {"memory": MEMORY_TIERS[container.memory_limit], **network_cfg(container.network, config)}
    if container.skills:
        own["skills"] = [*config.known_skills, *own_skills(container.skills, config)]
    return {**{name: value for name, value in cfg.items() if name not in pool_cfg(config)}, **own}


def audit_log(config: ContainersConfig) -> AuditLog:
    """Return the audit log, which may be off."""
    return AuditLog(config.audit, config.audit_code, config.audit_required)


def _limits(config: ContainersConfig, files: int, variables: int) -> dict[str, float]:
    """Return the limits of a container: bytes of files, and bytes of saved variables."""
    return {
        "max_work_dir_bytes": max(files, MIB),
        "min_disk_free": config.min_disk_free,
        "max_variables_bytes": max(min(config.max_variables_bytes, variables), 1),
        "max_archive_bytes": 2 * config.max_variables_bytes + MIB,  # they hold nothing else here
        "variables_timeout": config.variables_timeout,
        "cancel_grace": config.cancel_grace,
    }


def skill_copies(text: str) -> dict[str, str]:
    """Return a row's skills: the path of each copy, by the client's name for it."""
    return dict(each.split("=") for each in text.split())


def own_skills(text: str, config: ContainersConfig) -> tuple[Skill, ...]:
    """Return a row's skills. Raises InvalidParams if a copy is gone."""
    shelf = config.data_dir / "skills"
    return read_skills([shelf / copy for copy in skill_copies(text).values()], shelf)
