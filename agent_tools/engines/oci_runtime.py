"""The OCI runtimes of an engine, by kind, and the one that a sandbox gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from agent_tools.engines.isolation import Isolation
from agent_tools.errors import SandboxStartError

RuntimeKind = Literal["container", "gvisor", "kata", "sysbox", ""]
_KINDS: tuple[tuple[str, RuntimeKind], ...] = (
    ("runsc", "gvisor"),
    ("io.containerd.runsc", "gvisor"),
    ("gvisor", "gvisor"),
    ("kata", "kata"),
    ("io.containerd.kata", "kata"),
    ("sysbox", "sysbox"),
    ("runc", "container"),
    ("io.containerd.runc", "container"),
    ("io.containerd.runtime", "container"),
    ("crun", "container"),
    ("youki", "container"),
    ("nvidia", "container"),
)
INSTALL_GVISOR = (
    "install it on the engine's machine (Debian and Ubuntu: apt-get install runsc; else "
    "gvisor.dev/docs/user_guide/install), add it to the engine with `runsc install`, and restart the engine"
)


def kind_of(runtime: str) -> RuntimeKind:
    """Return the kind that a runtime's name stands for; '' for an unknown name."""
    return next((kind for start, kind in _KINDS if runtime.startswith(start)), "")


def shares_kernel(isolation: Isolation, runtimes: Sequence[str]) -> bool:
    """Return whether a sandbox uses the host's kernel, as far as it is known: host and guest can share a socket then.

    `runtimes` are the engine's, its default first; the default of an engine that names none shares it.
    """
    if isolation.runtime is not None:
        return kind_of(isolation.runtime) == "container"
    if isolation.isolation != "auto":
        return isolation.isolation == "container"
    return not runtimes or kind_of(runtimes[0]) in ("container", "")


def chosen(isolation: Isolation, runtimes: Sequence[str]) -> str | None:
    """Return the runtime to ask the engine for; None for its default, if that shares the host's kernel.

    Raises:
        SandboxStartError: the engine has none of the kind that `isolation` names.
    """
    if isolation.runtime is not None:
        return isolation.runtime
    if isolation.isolation == "auto" or not runtimes:
        usable = list(runtimes[:1])
    else:
        usable = [each for each in runtimes if kind_of(each) == isolation.isolation]
    if not usable and (runtimes or isolation.isolation == "gvisor"):
        remedy = f": {INSTALL_GVISOR}" if isolation.isolation == "gvisor" else ""
        raise SandboxStartError(
            f"isolation={isolation.isolation!r} is not possible: the engine has the runtimes "
            f"{', '.join(runtimes) or '(unknown)'}. Nothing was run{remedy}."
        )
    is_default = usable[:1] == list(runtimes[:1])
    return None if is_default and shares_kernel(isolation, runtimes) else usable[0]
