"""Verdicts on a container from the facts that the host reads. Pure functions."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from agent_tools.conformance.facts import (
    EXPOSURE,
    FILES,
    LIMITS,
    MUST_BE_MASKED,
    MUST_BE_READ_ONLY,
    NETWORK,
    PRIVILEGES,
    ContainerFacts,
    Finding,
    MountPoint,
    ProcessFacts,
    Verdict,
    one_line,
)
from agent_tools.engines.docker.payload import EngineName
from agent_tools.engines.volumes import GUEST_VOLUMES
from agent_tools.limits import MIB

# A rule: one property of a container, and how the host judges it.


UNSEEN = "the host's /proc does not show it here"

Judgement = tuple["bool | None", str]
"""True if the property holds, False if not, None if that cannot be seen; and the words for what was found."""


@dataclass(frozen=True)
class Rule:
    """One property of a container, and the function that judges it."""

    category: str
    name: str
    judge: Callable[[ContainerFacts], Judgement]
    needs_root: str = ""
    """For a property that only root can set on every host, promised to no other caller: the reason and the remedy."""
    needs_docker: str = ""
    """Likewise for a property that Podman cannot set."""


def of_every_process(
    holds: Callable[[ProcessFacts], bool], show: Callable[[ProcessFacts], str]
) -> Callable[[ContainerFacts], Judgement]:
    """Return a judge of every process. It shows the first process that does not hold, or else the first of all."""

    def judge(facts: ContainerFacts) -> Judgement:
        if not facts.processes:
            return None, UNSEEN
        bad = [process for process in facts.processes if not holds(process)]
        return not bad, show((bad or facts.processes)[0])

    return judge


# The rules on the limits of a container: those in force where the host shows them, else those in its settings.


MOST_OPEN_FILES = 65_536


def _limit(facts: ContainerFacts, name: str, setting: float) -> tuple[float, str]:
    """Return the cgroup's limit, where the host shows it, else the setting; infinity without a limit."""
    if name in facts.limits:
        return facts.limits[name], "in force"
    return setting if setting > 0 else math.inf, "set"


def _memory(facts: ContainerFacts) -> Judgement:
    limit, how = _limit(facts, "memory", facts.settings.memory)
    return math.isfinite(limit), f"{limit / MIB:.0f} MiB {how}" if math.isfinite(limit) else "unlimited"


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


def _cpu(facts: ContainerFacts) -> Judgement:
    limit, how = _limit(facts, "cpu", facts.settings.cpu)
    return math.isfinite(limit), f"{limit / 100_000:g} cores {how}" if math.isfinite(limit) else "unlimited"


def _pids(facts: ContainerFacts) -> Judgement:
    limit, how = _limit(facts, "pids", facts.settings.pids)
    return math.isfinite(limit), f"{limit:.0f} {how}" if math.isfinite(limit) else "unlimited"


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
    Rule(LIMITS, "memory", _memory),
    Rule(LIMITS, "swap beyond it", _swap),
    Rule(
        LIMITS, "TCP buffers", _tcp, needs_root="On cgroup v1 only root can limit them. Use cgroup v2, or run as root."
    ),
    Rule(LIMITS, "CPU", _cpu),
    Rule(LIMITS, "processes", _pids),
    Rule(LIMITS, "memory-backed folders", _memory_files),
    Rule(LIMITS, "empty files in memory", _empty_files, needs_docker="Podman cannot limit them: memory alone does."),
    Rule(LIMITS, "open files", _rlimit("Max open files", MOST_OPEN_FILES)),
    Rule(LIMITS, "file size", _rlimit("Max file size", math.inf)),
    Rule(LIMITS, "core dumps", _rlimit("Max core file size", 0)),
    Rule(LIMITS, "log", _log),
)


CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_PROXY = re.compile(r"(?i)(all|ftp|https?|no)_proxy")
_SECRET_NAME = re.compile(r"(?i)(token|secret|passw|credential|private_key|api_?key|access_?key)")
_SECRET_VALUE = re.compile(r"://[^/\s:@]+:[^/\s@]+@|\b[0-9a-f]{64}\b")
_DIGEST_NAME = re.compile(r"(?i).*(sha256|digest|checksum)")
_ENGINE_SOCKET = re.compile(r"(docker|containerd|podman|crio|buildkitd|dockershim)\.sock$")
_SYSTEM_DIRS = ("/", "/bin", "/home", "/lib", "/root", "/run", "/sbin", "/usr", "/var", "/var/run", "/var/lib/docker")
_SYSTEM_TREES = ("/boot", "/dev", "/etc", "/proc", "/sys")
_FALLBACK_TUNNELS = ("tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0")
"""Devices without address or peer that loaded modules make in every network namespace."""


def host_findings(facts: ContainerFacts, engine: EngineName = "Docker") -> Iterator[Finding]:
    """Yield a finding for each rule."""
    for rule in RULES:
        is_held, found = rule.judge(facts)
        verdict: Verdict = "unknown" if is_held is None else "held" if is_held else "open"
        reason = "" if os.getuid() == 0 else rule.needs_root
        reason = reason if engine == "Docker" else reason or rule.needs_docker
        is_promised, advice = not reason, reason if verdict == "open" else ""
        yield Finding(rule.category, rule.name, verdict, one_line(found), "host", is_promised, advice)


# -- information exposure ---------------------------------------------------------------------------------------------


def _proxies(facts: ContainerFacts) -> Judgement:
    names = [name for name, _ in facts.settings.environment if _PROXY.fullmatch(name)]
    return not names, ", ".join(names) or "none"


def _secrets(facts: ContainerFacts) -> Judgement:
    """Return the names of secrets without their values, which a report must not show."""
    names = [f"Env {name}" for name, value in facts.settings.environment if value and _is_secret(name, value)]
    names += ["Cmd"] if any(_SECRET_VALUE.search(word) for word in facts.settings.command) else []
    return not names, ", ".join(names) or "none in Env and Cmd"


def _is_secret(name: str, value: str) -> bool:
    return not _DIGEST_NAME.fullmatch(name) and bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


# -- file system ------------------------------------------------------------------------------------------------------


def _root(facts: ContainerFacts) -> Judgement:
    seen = [mount for mount in facts.mounts if mount.target == "/"]
    is_read_only = all("ro" in mount.options for mount in seen) if seen else facts.settings.is_root_read_only
    return is_read_only, "read-only" if is_read_only else "writable"


def _engine_socket(facts: ContainerFacts) -> Judgement:
    found = [source for source in facts.settings.binds if _ENGINE_SOCKET.search(source)]
    return not found, ", ".join(found) or "not mounted"


def _host_folders(facts: ContainerFacts) -> Judgement:
    found = [source for source in facts.settings.binds if _is_system(source)]
    return not found, ", ".join(found) or f"{len(facts.settings.binds)} mounted, none of the system's"


def _volumes(facts: ContainerFacts) -> Judgement:
    """Judge that nothing is mounted below a volume: it would not be read-only with it, and has options of its own."""
    found = [mount for mount in facts.mounts if mount.target.startswith(f"{GUEST_VOLUMES}/")]
    inner = [each.target for each in found if any(each.target.startswith(f"{other.target}/") for other in found)]
    if inner:
        return False, f"mounted below a volume: {', '.join(inner)}"
    return True, ", ".join(f"{each.target} {_rights(each)}" for each in found) or "none"


def _rights(volume: MountPoint) -> str:
    if "ro" in volume.options:
        return "read-only"
    return "writable" if "noexec" in volume.options else "writable, its files can be executed"


def _is_system(source: str) -> bool:
    path = PurePosixPath(source)
    return source in _SYSTEM_DIRS or any(path.is_relative_to(tree) for tree in _SYSTEM_TREES)


def _propagation(facts: ContainerFacts) -> Judgement:
    loose = sorted(facts.settings.propagation - {"private", "rprivate"})
    loose += [f"shared {mount.target}" for mount in facts.mounts if mount.is_shared]
    return not loose, ", ".join(loose) or "private"


def _masked(facts: ContainerFacts) -> Judgement:
    """Judge the settings, and the mounts: Podman's settings do not tell what it masks."""
    masked = facts.settings.masked | {mount.target for mount in facts.mounts}
    read_only = facts.settings.read_only | {mount.target for mount in facts.mounts if "ro" in mount.options}
    bare = ((MUST_BE_MASKED - masked) | (MUST_BE_READ_ONLY - read_only)) - facts.absent
    return not bare, ", ".join(sorted(bare)) or "masked or read-only"


# -- network ----------------------------------------------------------------------------------------------------------


def _network_mode(facts: ContainerFacts) -> Judgement:
    return facts.settings.network == "none", facts.settings.network


def _interfaces(facts: ContainerFacts) -> Judgement:
    if not facts.interfaces:
        return None, UNSEEN
    others = set(facts.interfaces) - {"lo", *_FALLBACK_TUNNELS}
    return not others, ", ".join(sorted(others)) or "lo"


def _ports(facts: ContainerFacts) -> Judgement:
    return not facts.settings.ports, ", ".join(facts.settings.ports) or "none"


# -- privileges -------------------------------------------------------------------------------------------------------


def _status(name: str, holds: Callable[[str], bool]) -> Callable[[ContainerFacts], Judgement]:
    return of_every_process(
        lambda process: name in process.status and holds(process.status[name]),
        lambda process: " ".join(process.status.get(name, "not told").split()) or "none",
    )


def _user(facts: ContainerFacts) -> Judgement:
    judge = of_every_process(
        lambda process: "0" not in [*process.status["Uid"].split(), *process.status["Gid"].split()],
        lambda process: f"uid {process.status['Uid'].split()[0]}, gid {process.status['Gid'].split()[0]}",
    )
    is_held, found = judge(facts)
    return is_held, f"{found}; processes: {len(facts.processes)}" if facts.processes else found


def _capabilities(facts: ContainerFacts) -> Judgement:
    """Judge every process, or, if none is visible, the settings, which can only show a failure."""
    if not facts.processes and ("ALL" not in facts.settings.dropped or facts.settings.added):
        return False, "not all dropped by its settings"
    judge = of_every_process(
        lambda process: all(_is_empty(process, name) for name in CAPABILITY_SETS), _capability_words
    )
    return judge(facts)


def _capability_words(process: ProcessFacts) -> str:
    words = [f"{name} {process.status.get(name, '?')}" for name in CAPABILITY_SETS if not _is_empty(process, name)]
    return ", ".join(words) or "none, in all five sets"


def _is_empty(process: ProcessFacts, name: str) -> bool:
    return re.fullmatch("0+", process.status.get(name, "")) is not None


def _seccomp_profile(facts: ContainerFacts) -> Judgement:
    given = [each for each in facts.settings.security if each.startswith("seccomp")]
    if any("unconfined" in each for each in given):
        return False, "unconfined"
    return bool(given), "its own" if given else "the engine's default"


def _privileged(facts: ContainerFacts) -> Judgement:
    words = [*(["privileged"] if facts.settings.is_privileged else []), *facts.settings.devices]
    return not words, ", ".join(words) or "no"


def _namespaces(facts: ContainerFacts) -> Judgement:
    modes = facts.settings.namespaces.items()
    shared = [f"{name} {mode}" for name, mode in modes if mode == "host" or mode.startswith("container:")]
    if any(len(process.status.get("NSpid", "1 1").split()) < 2 for process in facts.processes):
        shared.append("Pid host")
    return not shared, ", ".join(dict.fromkeys(shared)) or "its own"


RULES = (
    Rule(EXPOSURE, "no proxy settings", _proxies),
    Rule(EXPOSURE, "no secrets in its settings", _secrets),
    Rule(FILES, "root file system", _root),
    Rule(FILES, "engine socket mounted", _engine_socket),
    Rule(FILES, "host folders", _host_folders),
    Rule(FILES, "volumes", _volumes),
    Rule(FILES, "mount propagation", _propagation),
    Rule(FILES, "kernel's files in /proc", _masked),
    Rule(NETWORK, "network mode", _network_mode),
    Rule(NETWORK, "interfaces", _interfaces),
    Rule(NETWORK, "published ports", _ports),
    Rule(PRIVILEGES, "user of every process", _user),
    Rule(PRIVILEGES, "supplementary groups", _status("Groups", lambda groups: "0" not in groups.split())),
    Rule(PRIVILEGES, "capabilities", _capabilities),
    Rule(PRIVILEGES, "NoNewPrivs", _status("NoNewPrivs", lambda value: value == "1")),
    Rule(PRIVILEGES, "Seccomp filter", _status("Seccomp", lambda value: value == "2")),
    Rule(PRIVILEGES, "seccomp profile", _seccomp_profile),
    Rule(PRIVILEGES, "privileged, devices", _privileged),
    Rule(PRIVILEGES, "namespaces", _namespaces),
    *LIMIT_RULES,
)
