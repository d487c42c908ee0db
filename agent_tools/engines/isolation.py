"""The limits of one sandbox, and what stands between its code and the host."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from agent_tools.engines.network import NetworkPolicy
from agent_tools.errors import InvalidParams
from agent_tools.limits import GIB, KIB, MIB, with_sizes

Wall = Literal["auto", "container", "gvisor"]
"""The wall between code and the host's kernel: `auto` is the engine's default runtime."""
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
