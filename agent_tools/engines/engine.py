"""The Engine protocol, and the description of one sandbox with all its limits."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, get_args

from agent_tools.engines.network import NetworkPolicy
from agent_tools.engines.oci_runtime import Wall
from agent_tools.engines.volumes import Volume
from agent_tools.errors import EngineError, InvalidParams
from agent_tools.limits import GIB, KIB, MIB, with_sizes

GUEST_RUN_DIR = "/run/kernel"
GUEST_WORK_DIR = "/workspace"
GUEST_SKILLS = "/skills"
MAX_SKILL_BYTES = 64 * MIB

_HOST_NETWORKS = re.compile(r"host|container:.*|ns:.*", re.IGNORECASE | re.DOTALL)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Isolation:
    """The limits of one sandbox. Every field has a safe default; no field can widen access to the host.

    Sizes are bytes, or text such as '512m' and '4g' (1024-based).

    Raises:
        InvalidParams: a value is out of range or would break the isolation.
    """

    network: str | NetworkPolicy = "none"
    """'none', a list of what may be reached (see `agent_tools.engines.network`), or the name of an engine network (e.g.
    'bridge') to opt in to; host and shared namespaces are refused. With a list the sandbox has no interface either."""
    memory: int = 2 * GIB
    """Bytes of memory, files in /tmp, /var/tmp, HOME and /dev/shm included; there is no swap beyond it."""
    cpus: float = 1.0
    """CPU cores, fractions allowed."""
    pids: int = 256
    """Processes and threads."""
    tmp: int = 256 * MIB
    """Bytes of each of /tmp and /var/tmp (memory-backed, not executable)."""
    home: int = 64 * MIB
    """Bytes of HOME (memory-backed, not executable)."""
    shm: int = 64 * MIB
    """Bytes of /dev/shm."""
    installed: int = 512 * MIB
    """Bytes of the packages that the code installs (memory-backed, executable); the place is there with a list only."""
    file_size: int = GIB
    """Bytes of the largest file the code may write."""
    open_files: int = 1024
    """File descriptors of one process."""
    log: int = MIB
    """Bytes of container log the engine keeps."""
    runtime: str | None = None
    """An OCI runtime the engine knows, e.g. 'runsc' or 'kata'; a missing one is an error, never a silent fall-back."""
    isolation: Wall = "auto"
    """What stands between the code and the host's kernel: 'auto', the engine's default runtime; 'container', runc or
    crun; 'gvisor', a kernel of its own. Without such a runtime nothing runs. Give this or `runtime`."""
    gpus: int | str | None = None
    """None, a number of GPUs, or 'all'."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for the code; nothing of the host's environment is passed otherwise."""

    def __post_init__(self) -> None:
        _check_network(self.network)
        _check_env(self.env)
        sizes = with_sizes({name: getattr(self, name) for name in _LEAST})
        for name, least in _LEAST.items():
            value = sizes[name]
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < math.inf:
                kind = "a number" if least < KIB else "bytes, or a size such as '512m' or '4g',"
                raise InvalidParams(f"{name}={value!r:.80} is not usable: give {kind} of at least {least:,}.")
            if name != "cpus":
                object.__setattr__(self, name, _whole(name, value))
        if self.runtime is not None and (not isinstance(self.runtime, str) or not self.runtime):
            raise InvalidParams(
                f"runtime={self.runtime!r:.80} is not usable: give the name of an OCI runtime, or None."
            )
        if self.isolation not in get_args(Wall):
            raise InvalidParams(
                f"isolation={self.isolation!r:.80} is not usable: give one of {', '.join(get_args(Wall))}; another OCI "
                "runtime, such as Kata's, by its name as `runtime`."
            )
        if self.isolation != "auto" and self.runtime is not None:
            raise InvalidParams(
                f"isolation={self.isolation!r} and runtime={self.runtime!r:.80} both choose a runtime: give one."
            )
        if self.gpus is not None and self.gpus != "all" and not (type(self.gpus) is int and self.gpus > 0):
            raise InvalidParams(f"gpus={self.gpus!r} is not usable: give a number, 'all', or None.")

    @property
    def policy(self) -> NetworkPolicy | None:
        """The list of what may be reached, if there is one."""
        return self.network if isinstance(self.network, NetworkPolicy) else None

    @property
    def engine_network(self) -> str:
        """The engine's name of the network: 'none' with a list, too."""
        return self.network if isinstance(self.network, str) else "none"


_LEAST = {
    "memory": 128 * MIB,
    "cpus": 0.05,
    "pids": 32,
    "tmp": MIB,
    "home": 4 * MIB,
    "shm": MIB,
    "installed": MIB,
    "file_size": MIB,
    "open_files": 128,
    "log": 64 * 1024,
}


def _whole(name: str, value: float) -> int:
    if int(value) != value:
        raise InvalidParams(f"{name}={value!r} is not usable: give a whole number.")
    return int(value)


def _check_network(network: object) -> None:
    if isinstance(network, NetworkPolicy):
        return
    if not isinstance(network, str) or not network:
        raise InvalidParams(
            f"network={network!r:.80} is not usable: give 'none', a dict such as {{'allow': ['pypi']}}, or the name of "
            "an engine network. There is no way to all of the internet: list the names that code may reach."
        )
    if _HOST_NETWORKS.fullmatch(network):
        raise InvalidParams(f"network={network!r} would share a network namespace and break the isolation; use 'none'.")


def _check_env(env: Mapping[str, str]) -> None:
    if not isinstance(env, Mapping):
        raise InvalidParams(f"env is of type {type(env).__name__}: give a dict of names and values.")
    for name, value in env.items():
        if not isinstance(name, str) or not _ENV_NAME.fullmatch(name) or not isinstance(value, str) or "\0" in value:
            raise InvalidParams(f"env has an unusable entry {name!r}: names are identifiers, values are text.")


@dataclass(frozen=True)
class Guest:
    """The user of the guest's processes: its uid and gid in the container, and on the host, where they own its files.

    Attributes:
        shares_sockets: True if a unix socket of the host can be mounted and connected to (not from a VM).
        shares_files: True if folders of the host can be mounted (not by an engine on another machine).
        runtimes: the OCI runtimes of the engine, its default first; () where it names none.
    """

    container_ids: tuple[int, int]
    host_ids: tuple[int, int]
    shares_sockets: bool = True
    shares_files: bool = True
    runtimes: tuple[str, ...] = ()

    @classmethod
    def own(cls, *, shares: bool = True) -> Guest:
        """Return this process's own user, for files on the host that no guest owns."""
        me = (os.getuid(), os.getgid())
        return cls(me, me, shares, shares)


@dataclass(frozen=True)
class SandboxSpec:
    """One sandbox to start.

    Without a `run_dir` to mount, the host connects over stdio; without a `work_dir`, it gets a memory-backed one of
    `work_dir_bytes`.
    """

    image: str
    run_dir: Path | None
    work_dir: Path | None
    guest: Guest
    isolation: Isolation
    labels: Mapping[str, str]
    work_dir_bytes: int = 0
    is_ahead: bool = False
    """True for a sandbox made ahead: it has a low CPU share until `EngineContainer.promote`."""
    skills: tuple[Path, ...] = ()
    """Folders of the host to mount read-only below GUEST_SKILLS, each under its own name. Without a `work_dir`, there
    is a memory-backed folder instead, which takes copies of up to MAX_SKILL_BYTES each."""
    volumes: tuple[Volume, ...] = ()
    """Mounted at their targets; an engine on another machine has only volumes with a name of its own."""
    groups: tuple[int, ...] = ()
    """Further groups of the guest's processes, which the folders of volumes are for."""


class StreamLost(EngineError, OSError):
    """The way to a sandbox broke, and the sandbox with it. The text is a clause that says how."""


class Stdio(Protocol):
    """The stdin and stdout of a sandbox as one non-blocking stream. Closing it ends the sandbox.

    `receive` and `send` may raise StreamLost.
    """

    def fileno(self) -> int:
        """Return the descriptor to poll for reading; -1 once closed."""
        ...

    def writer(self) -> int:
        """Return the descriptor to poll for writing, which differs if there are two pipes; -1 once closed."""
        ...

    def receive(self) -> bytes | None:
        """Return bytes of output; b'' at the end, None if there are none yet."""
        ...

    def send(self, data: bytes | bytearray) -> int:
        """Send bytes without waiting; return how many were sent."""
        ...

    def close(self) -> None:
        """Close the stream. May be called twice, and in a forked child."""
        ...


@dataclass(frozen=True)
class EngineContainer:
    """One running container, by the engine's id.

    Attributes:
        stdio: the stream, if the sandbox was started without a run directory.
        pid: its PID 1 on this machine; 0 if not visible here, or if it has no folder of this machine.
        promote: gives a sandbox made ahead the normal CPU share. Raises EngineError.
    """

    id: str
    stdio: Stdio | None = field(default=None, compare=False, repr=False)
    pid: int = field(default=0, compare=False)
    promote: Callable[[], object] = field(default=bool, compare=False, repr=False)


class Engine(Protocol):
    """Runs sandboxes. Thread-safe; every method raises an EngineError when the engine fails."""

    def guest(self, work_dir: Path | None = None) -> Guest:
        """Return the user of the guest's processes for this work_dir: always the same for one folder."""
        ...

    def start(self, spec: SandboxSpec) -> EngineContainer:
        """Create and start a sandbox."""
        ...

    def remove(self, sandbox: EngineContainer) -> None:
        """Kill and remove a sandbox; a missing one is not an error."""
        ...

    def last_words(self, sandbox: EngineContainer, spec: SandboxSpec) -> str | None:
        """Return the output of a sandbox that ended during start-up; None while it runs."""
        ...

    def strays(self, host: Mapping[str, str]) -> Sequence[tuple[EngineContainer, Mapping[str, str]]]:
        """Return every sandbox whose labels contain `host`, with its labels."""
        ...
