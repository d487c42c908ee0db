"""The rules on the limits of a container: those in force where the host shows them, else those in its settings."""

from __future__ import annotations

import math
from collections.abc import Callable

from agent_tools.conformance.facts import ContainerFacts, MountPoint
from agent_tools.conformance.findings import LIMITS
from agent_tools.conformance.rule import UNSEEN, Judgement, Rule, of_every_process
from agent_tools.limits import MIB

MOST_OPEN_FILES = 65_536


def _limit(name: str, show: Callable[[float], str]) -> Callable[[ContainerFacts], Judgement]:
    """Return the check of a limit: the cgroup's, where the host shows it, else the one in the settings."""

    def judge(facts: ContainerFacts) -> Judgement:
        setting = getattr(facts.settings, name)  # 0 or less without a limit
        limit, how = setting if setting > 0 else math.inf, "set"
        if name in facts.limits:
            limit, how = facts.limits[name], "in force"
        return math.isfinite(limit), f"{show(limit)} {how}" if math.isfinite(limit) else "unlimited"

    return judge


def _swap(facts: ContainerFacts) -> Judgement:
    memory, both = facts.settings.memory, facts.settings.memory_and_swap
    beyond = facts.limits.get("swap", both - memory if memory and both >= 0 else math.inf)
    return beyond == 0, f"{beyond / MIB:.0f} MiB" if math.isfinite(beyond) else "unlimited"


def _tcp(facts: ContainerFacts) -> Judgement:
    """Judge the buffers of TCP connections, which cgroup v1 counts in no limit but their own."""
    if "tcp" not in facts.limits:
        return None, UNSEEN
    limit = facts.limits["tcp"]
    return math.isfinite(limit), f"{limit / MIB:.0f} MiB in force" if math.isfinite(limit) else "unlimited"


def _log(facts: ContainerFacts) -> Judgement:
    kind, options = facts.settings.log, facts.settings.log_options
    if kind == "none" or (kind in {"json-file", "local"} and "max-size" in options):
        return True, f"{kind} {options.get('max-size', '')}".strip()
    if kind == "local":
        return True, "local, with its default bound"
    return (False, "json-file without a bound") if kind == "json-file" else (None, kind)


def _memory_files(facts: ContainerFacts) -> Judgement:
    """Judge the memory-backed folders of the container. A folder of the host has the quota of work_dir as its limit."""
    if not facts.mounts:
        return None, UNSEEN
    writable = [mount for mount in facts.mounts if mount.kind == "tmpfs" and "ro" not in mount.options]
    folders = [mount for mount in writable if not mount.target.startswith(("/proc/", "/sys/"))]
    own = [mount for mount in folders if mount.target not in facts.settings.bind_targets]
    loose = [mount.target for mount in own if not any(option.startswith("size=") for option in mount.options)]
    if loose:
        return False, f"unbounded: {', '.join(loose)}"
    shared = [f"{mount.target} lies in the host's memory (tmpfs)" for mount in folders if mount not in own]
    return True, ", ".join([*(mount.target for mount in own), *shared]) or "none"


def _empty_files(facts: ContainerFacts) -> Judgement:
    """Judge the number of files in memory-backed folders: the size of a tmpfs does not count empty ones."""
    own = [mount for mount in facts.mounts if _is_own_tmpfs(mount, facts)]
    if not facts.mounts:
        return None, UNSEEN
    loose = [mount.target for mount in own if not any(option.startswith("nr_inodes=") for option in mount.options)]
    return not loose, f"any number in {', '.join(loose)}" if loose else "limited"


def _is_own_tmpfs(mount: MountPoint, facts: ContainerFacts) -> bool:
    is_kernels = mount.target.startswith(("/proc/", "/sys/")) or mount.target == "/dev"
    is_writable = mount.kind == "tmpfs" and "ro" not in mount.options
    return is_writable and not is_kernels and mount.target not in facts.settings.bind_targets


def _rlimit(name: str, most: float) -> Callable[[ContainerFacts], Judgement]:
    return of_every_process(
        lambda process: process.limits.get(name, "").isdecimal() and int(process.limits[name]) <= most,
        lambda process: process.limits.get(name, "not told"),
    )


LIMIT_RULES = (
    Rule(LIMITS, "memory", _limit("memory", lambda limit: f"{limit / MIB:.0f} MiB")),
    Rule(LIMITS, "swap beyond it", _swap),
    Rule(
        LIMITS, "TCP buffers", _tcp, needs_root="On cgroup v1 only root can limit them. Use cgroup v2, or run as root."
    ),
    Rule(LIMITS, "CPU", _limit("cpu", lambda limit: f"{limit / 100_000:g} cores")),
    Rule(LIMITS, "processes", _limit("pids", lambda limit: f"{limit:.0f}")),
    Rule(LIMITS, "memory-backed folders", _memory_files),
    Rule(LIMITS, "empty files in memory", _empty_files, needs_docker="Podman cannot limit them: memory alone does."),
    Rule(LIMITS, "open files", _rlimit("Max open files", MOST_OPEN_FILES)),
    Rule(LIMITS, "file size", _rlimit("Max file size", math.inf)),
    Rule(LIMITS, "core dumps", _rlimit("Max core file size", 0)),
    Rule(LIMITS, "log", _log),
)
