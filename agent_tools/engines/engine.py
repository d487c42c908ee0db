"""The Engine protocol, and the description of one sandbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agent_tools.engines.guest import Guest
from agent_tools.engines.isolation import Isolation
from agent_tools.engines.volumes import Volume
from agent_tools.errors import EngineError
from agent_tools.limits import MIB

GUEST_RUN_DIR = "/run/kernel"
GUEST_WORK_DIR = "/workspace"
GUEST_SKILLS = "/skills"
MAX_SKILL_BYTES = 64 * MIB


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
        return self.fileno()

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
