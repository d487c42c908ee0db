"""Facts about a running container that the host reads: its settings, and its processes in /proc and cgroups.

Nothing is executed in the container. Facts that cannot be read (a remote engine, /proc of another user) are absent.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from agent_tools.text import neutralise

# The untrusted findings of code inside a container.
#
# Each is bounded, checked against the catalogue and neutralised; a malformed one counts as `unknown`.

# One checked property of a container, and the count of many.


Verdict = Literal["held", "open", "unknown", "info"]
VERDICTS: tuple[Verdict, ...] = ("held", "open", "unknown", "info")

EXPOSURE = "information exposure"
FILES = "file system"
NETWORK = "network"
PRIVILEGES = "privileges and dangerous operations"
LIMITS = "resource limits"
CATEGORIES = (EXPOSURE, FILES, NETWORK, PRIVILEGES, LIMITS)
MOST_CHARS = 120  # of what was found


@dataclass(frozen=True)
class Finding:
    """The verdict on one property, and its reason. `info` is a fact without a promise."""

    category: str
    name: str
    verdict: Verdict
    found: str
    seen_by: Literal["host", "code"]
    """Findings of `code` come from inside the container and may be false."""
    is_promised: bool = True
    """True if our sandbox promises it with its default options."""
    advice: str = ""
    """For an open property that is not promised to this caller: the reason and the remedy."""

    @property
    def breaks_a_promise(self) -> bool:
        """True if such a finding breaks a promise of the default sandbox."""
        return self.is_promised and self.verdict == "open"


def counts(findings: Sequence[Finding]) -> dict[Verdict, int]:
    """Return the count of each verdict."""
    found = Counter(finding.verdict for finding in findings)
    return {verdict: found[verdict] for verdict in VERDICTS}


def one_line(text: str) -> str:
    """Return a container's text, made safe to show in one cell of a table."""
    words = " ".join(neutralise(text[: 4 * MOST_CHARS]).split())
    return words if len(words) <= MOST_CHARS else f"{words[: MOST_CHARS - 1]}…"


MOST_BYTES = 64 * 1024  # of a container's claims
_ROOM = "agent_tools.conformance.guest"
_MODULES = ("answers", "arguments", "files", "privileges", "main")  # in the order they import each other

UNPROMISED = {"host_paths", "shared_kernel", "symbolic_link"}  # facts without a promise
CATALOGUE: Mapping[str, Mapping[str, str]] = {
    EXPOSURE: {
        "environment": "environment variables",
        "credentials": "credential files",
        "engine_socket": "engine socket reachable",
        "kernel_memory": "kernel and physical memory",
        "kernel_log": "kernel log",
        "host_processes": "host processes",
        "init_memory": "memory, environment of PID 1",
        "host_paths": "host paths",
        "shared_kernel": "host kernel",
        "name_servers": "host name servers",
    },
    FILES: {
        "write_root": "write to /",
        "write_etc": "write to /etc",
        "write_python": "write to the interpreter",
        "write_packages": "write to site-packages",
        "write_run": "write to /run",
        "kernel_settings": "write to /sys, /proc/sys",
        "login": "choose a login for the audit",
        "sysrq": "write to sysrq-trigger",
        "execute_from_tmp": "execute from /tmp",
        "set_user_id": "set a set-user-id bit",
        "set_user_id_files": "set-user-id files",
        "fifo": "make a FIFO",
        "device_node": "make a device node",
        "devices": "devices beyond the usual",
        "symbolic_link": "symbolic links",
    },
    NETWORK: {
        "gateway": "host by its gateway",
        "metadata": "metadata service",
        "internet": "internet",
        "route_out": "route out",
        "names": "DNS",
        "host_names": "host.docker.internal",
        "raw_socket": "raw sockets",
        "packet_socket": "packet sockets",
        "vsock": "AF_VSOCK",
        "kernel_crypto": "AF_ALG",
        "netlink": "netlink (netfilter)",
        "abstract_sockets": "abstract sockets of others",
    },
    PRIVILEGES: {
        "unshare": "unshare (user namespace)",
        **{
            name: name
            for name in (
                "setns",
                "mount",
                "fsopen",
                "pivot_root",
                "bpf",
                "perf_event_open",
                "keyctl",
                "userfaultfd",
                "io_uring_setup",
                "ptrace",
                "process_vm_readv",
                "open_by_handle_at",
                "finit_module",
                "personality",
                "sethostname",
                "syncfs",
            )
        },
        "forbidden_arguments": "forbidden arguments, high bits",
        "foreign_calls": "system calls of other ABIs",
        "signals": "signals between its processes",
        "become_root": "become root",
        "change_root": "chroot",
        "touch_init": "priority, limits of PID 1",
        "escalating_programs": "sudo, su and the like",
        "installing_programs": "pip, compilers, downloaders",
    },
    LIMITS: {
        "raise_limits": "raise a hard limit",
        "favour_itself": "raise its priority",
        "spare_itself": "escape the OOM killer",
    },
}


def program() -> str:
    """Return the guest's code as one text: its modules, and the lines that load them without files."""
    folder = Path(__file__).with_name("guest")
    sources = {f"{_ROOM}.{name}": (folder / f"{name}.py").read_text() for name in _MODULES}
    return f"""import sys, types
for name, source in {json.dumps({_ROOM: "", **sources})}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)
sys.modules["{_ROOM}.main"].main()
"""


def claimed_findings(said: bytes | None, why_not: str = "") -> Iterator[Finding]:
    """Yield a finding for each entry of the catalogue, from a container's answer; None if it was not asked."""
    answers = {} if said is None else _answers(said)
    missing = why_not or "it did not say"
    for category, names in CATALOGUE.items():
        for name, title in names.items():
            verdict, found = _claim(name, answers.get(name), missing)
            yield Finding(category, title, verdict, found, "code", is_promised=name not in UNPROMISED)


def _answers(said: bytes) -> Mapping[str, Any]:
    if len(said) > MOST_BYTES:
        return {}
    try:
        spoken = json.loads(said.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    answers = spoken.get("answers") if isinstance(spoken, dict) else None
    return answers if isinstance(answers, dict) else {}


def _claim(name: str, answer: object, missing: str) -> tuple[Verdict, str]:
    match answer:
        case ["held" | "open" | "unknown" | "info" as verdict, str(found)] if (verdict == "info") <= (
            name in UNPROMISED
        ):
            return verdict, one_line(found)
    return "unknown", missing if answer is None else "its answer makes no sense"


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


def read_text(path: Path) -> str:
    """Return a file of /proc, /sys or /run as text; '' if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


# A container's settings, read from `docker inspect`. A setting that is absent counts as not made.


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
