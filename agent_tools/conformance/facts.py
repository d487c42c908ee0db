"""Facts about a running container that the host reads: its settings, and its processes in /proc and cgroups.

Nothing is executed in the container. Facts that cannot be read (a remote engine, /proc of another user) are absent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_tools.conformance.container_settings import ContainerSettings
from agent_tools.machine.machine import read_text

PROC = Path("/proc")
MUST_BE_MASKED = frozenset({"/proc/kcore", "/proc/keys", "/proc/timer_list"})
MUST_BE_READ_ONLY = frozenset({"/proc/sys", "/proc/sysrq-trigger"})
CGROUP = Path("/sys/fs/cgroup")
_UNLIMITED_V1 = 2**62  # cgroup v1 writes "no limit" as the largest number of whole pages
_LIMIT_FILES = {  # limit: file of cgroup v2; controller and file of cgroup v1
    "memory": ("memory.max", "memory", "memory.limit_in_bytes"),
    "swap": ("memory.swap.max", "memory", "memory.memsw.limit_in_bytes"),
    "tcp": ("memory.max", "memory", "memory.kmem.tcp.limit_in_bytes"),  # v2 counts it as any other memory
    "pids": ("pids.max", "pids", "pids.max"),
    "cpu": ("cpu.max", "cpu", "cpu.cfs_quota_us"),
}


@dataclass(frozen=True)
class ProcessFacts:
    """One process: /proc/<pid>/status by field, and the hard limits of /proc/<pid>/limits by name."""

    status: Mapping[str, str]
    limits: Mapping[str, str]


@dataclass(frozen=True)
class MountPoint:
    """One line of /proc/<pid>/mountinfo."""

    target: str
    kind: str
    options: frozenset[str]
    is_shared: bool


@dataclass(frozen=True)
class ContainerFacts:
    """The facts of one container."""

    settings: ContainerSettings
    processes: tuple[ProcessFacts, ...] = ()
    mounts: tuple[MountPoint, ...] = ()
    interfaces: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    """Limits of its cgroup: bytes, processes, or microseconds of CPU per period; infinity without a limit."""
    absent: frozenset[str] = frozenset()
    """The files of /proc that this kernel does not have, among those that have to be masked or read-only."""


def read_facts(
    inspected: Mapping[str, Any], pids: Iterable[int], proc: Path = PROC, cgroup: Path = CGROUP
) -> ContainerFacts:
    """Read a container's facts from `docker inspect` and its processes.

    Pids that belong to another container here (the engine is remote) are left out.
    """
    settings = ContainerSettings.of(inspected)
    own = [pid for pid in pids if _is_in(inspected["Id"], proc / str(pid))]
    if not own:
        return ContainerFacts(settings)
    first = proc / str(own[0])
    membership = read_text(first / "cgroup")
    processes = (_process(proc / str(pid)) for pid in own)
    return ContainerFacts(
        settings,
        processes=tuple(process for process in processes if process.status),
        mounts=tuple(_mounts(read_text(first / "mountinfo"))),
        interfaces=tuple(re.findall(r"^\s*(\S+):", read_text(first / "net" / "dev"), re.MULTILINE)),
        limits=_limits(membership, cgroup) if inspected["Id"] in membership else dict.fromkeys(_LIMIT_FILES, math.inf),
        absent=frozenset(path for path in MUST_BE_MASKED | MUST_BE_READ_ONLY if not (proc / path[6:]).exists()),
    )


def _is_in(id_: str, folder: Path) -> bool:
    """Return whether a process is in the container, by its cgroup or its mounts."""
    return any(id_ in read_text(folder / name) for name in ("cgroup", "mountinfo"))


def _process(folder: Path) -> ProcessFacts:
    status = dict(re.findall(r"^(\w+):[ \t]*(.*)$", read_text(folder / "status"), re.MULTILINE))
    limits = dict(re.findall(r"^(Max [a-z ]+?) {2,}\S+ +(\S+)", read_text(folder / "limits"), re.MULTILINE))
    return ProcessFacts(status, limits)


def _mounts(text: str) -> Iterable[MountPoint]:
    """Read lines in the format of proc_pid_mountinfo(5)."""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        options = frozenset([*fields[5].split(","), *rest[-1].split(",")])
        is_shared = any(tag.startswith("shared:") for tag in fields[6:])
        yield MountPoint(fields[4], rest[0], options, is_shared)


def _limits(membership: str, root: Path) -> dict[str, float]:
    folders = {name: path for _, names, path in _memberships(membership) for name in names.split(",")}
    found = {}
    for limit, (file, controller, old_file) in _LIMIT_FILES.items():
        if controller in folders:
            text = read_text(root / controller / folders[controller].lstrip("/") / old_file)
        else:
            text = read_text(root / folders.get("", "").lstrip("/") / file)
        if text.strip():
            found[limit] = _amount(text.split()[0])
    if "memory" in folders and {"swap", "memory"} <= found.keys() and math.isfinite(found["swap"]):
        found["swap"] -= found["memory"]  # v1 counts memory and swap together
    return found


def _memberships(text: str) -> Iterable[list[str]]:
    return (line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2)


def _amount(word: str) -> float:
    if word in {"max", "-1"}:
        return math.inf
    amount = int(word)
    return math.inf if amount >= _UNLIMITED_V1 else amount
