"""A container's settings, read from `docker inspect`. A setting that is absent counts as not made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_DEVICE_SETTINGS = ("Devices", "DeviceCgroupRules", "DeviceRequests")


@dataclass(frozen=True)
class ContainerSettings:
    """The settings that decide what a container may see, reach and use.

    Attributes:
        command: the entry point and its arguments.
        binds: the host's paths that are mounted.
        bind_targets: where they are mounted.
        propagation: the propagation of all mounts.
        ports: those that are published.
        security: the security options, such as `seccomp=...`.
        devices: the names of the settings that give devices.
        namespaces: the mode of the Pid, Ipc and UTS namespace.
        memory: bytes; 0 without a limit.
        memory_and_swap: bytes; 0 if not set, -1 without a limit.
        cpu: microseconds per period of 100 ms; 0 without a limit.
        pids: processes; 0 or -1 without a limit.
    """

    environment: tuple[tuple[str, str], ...]
    command: tuple[str, ...]
    is_root_read_only: bool
    binds: tuple[str, ...]
    bind_targets: frozenset[str]
    propagation: frozenset[str]
    masked: frozenset[str]
    read_only: frozenset[str]
    network: str
    ports: tuple[str, ...]
    is_privileged: bool
    dropped: frozenset[str]
    added: frozenset[str]
    security: tuple[str, ...]
    devices: tuple[str, ...]
    namespaces: Mapping[str, str]
    memory: int
    memory_and_swap: int
    cpu: float
    pids: int
    log: str
    log_options: Mapping[str, str]

    @classmethod
    def of(cls, inspected: Mapping[str, Any]) -> ContainerSettings:
        """Read the settings from the answer of `docker inspect`."""
        config, host = inspected.get("Config") or {}, inspected.get("HostConfig") or {}
        mounts = inspected.get("Mounts") or ()
        ports = (inspected.get("NetworkSettings") or {}).get("Ports") or {}
        binds = [mount for mount in mounts if mount["Type"] == "bind"]
        log = host.get("LogConfig") or {}
        return cls(
            environment=tuple(_pair(entry) for entry in config.get("Env") or ()),
            command=(*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())),
            is_root_read_only=bool(host.get("ReadonlyRootfs")),
            binds=tuple(str(mount.get("Source", "")) for mount in binds),
            bind_targets=frozenset(str(mount.get("Destination", "")) for mount in binds),
            propagation=frozenset(str(mount.get("Propagation") or "private") for mount in mounts),
            masked=frozenset(host.get("MaskedPaths") or ()),
            read_only=frozenset(host.get("ReadonlyPaths") or ()),
            network=str(host.get("NetworkMode", "")),
            ports=tuple(port for port, bindings in ports.items() if bindings),
            is_privileged=bool(host.get("Privileged")),
            dropped=frozenset(host.get("CapDrop") or ()),
            added=frozenset(host.get("CapAdd") or ()),
            security=tuple(host.get("SecurityOpt") or ()),
            devices=tuple(name for name in _DEVICE_SETTINGS if host.get(name)),
            namespaces={name: str(host.get(f"{name}Mode") or "private") for name in ("Pid", "Ipc", "UTS")},
            memory=host.get("Memory") or 0,
            memory_and_swap=host.get("MemorySwap") or 0,
            cpu=host.get("CpuQuota") or (host.get("NanoCpus") or 0) / 10_000,
            pids=host.get("PidsLimit") or 0,
            log=str(log.get("Type", "")),
            log_options=log.get("Config") or {},
        )


def _pair(entry: str) -> tuple[str, str]:
    name, _, value = entry.partition("=")
    return name, value
