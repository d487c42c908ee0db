"""Verdicts on a container from the facts that the host reads. Pure functions."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from agent_tools.conformance.facts import MUST_BE_MASKED, MUST_BE_READ_ONLY, ContainerFacts, MountPoint, ProcessFacts
from agent_tools.conformance.findings import EXPOSURE, FILES, NETWORK, PRIVILEGES, Finding, Verdict, one_line
from agent_tools.conformance.limit_rules import LIMIT_RULES
from agent_tools.conformance.rule import UNSEEN, Judgement, Rule, of_every_process
from agent_tools.engines.docker.podman_form import EngineName
from agent_tools.engines.volumes import GUEST_VOLUMES

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
