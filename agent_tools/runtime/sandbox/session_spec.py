"""The specification of a session, as a value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent_tools.engines.isolation import Isolation
from agent_tools.engines.volumes import Volume
from agent_tools.guest.wire.message_limits import DEFAULT_LIMIT, MessageLimits
from agent_tools.limits import Limits
from agent_tools.runtime.transport.transport import TransportName
from agent_tools.skills.skill import Skill

if TYPE_CHECKING:
    from agent_tools.runtime.host_calls.host_calls import HostCalls


@dataclass(frozen=True)
class Ahead:
    """Pool options of a session: the number of ready sandboxes, and the modules imported in them."""

    size: int = 0
    preload: tuple[str, ...] = ()


@dataclass(frozen=True)
class SessionSpec:
    """Everything needed to create a session. `work_dir` exists and the guest can write to it.

    `transport` is 'sockets', 'stdio', or 'auto' for the fastest that works.
    """

    image: str
    work_dir: Path
    isolation: Isolation
    limits: Limits
    transport: TransportName = "auto"
    host_calls: HostCalls | None = None
    prelude: str = ""
    """Code that every fresh kernel runs before anything else."""
    ahead: Ahead = Ahead()
    is_blank: bool = False
    """True for a sandbox made ahead, whose session and host functions are not known yet."""
    idle_stop: float = 0.0
    """Seconds without use after which the processes of the sandbox are stopped until its next use; 0 for never."""
    checkpoint: bool = False
    """Whether kernels leave checkpoints, one of which continues when a kernel is killed."""
    skills: tuple[Skill, ...] = ()
    """Folders to mount read-only below /skills; none of them ever changes."""
    volumes: tuple[Volume, ...] = ()

    @property
    def telling_isolation(self) -> Isolation:
        """Return the isolation with non-default limits on messages in its environment.

        A sandbox made ahead has them already, from the session that it is made for.
        """
        if self.is_blank:
            return self.isolation
        calls = self.host_calls.limits.max_message_bytes if self.host_calls else DEFAULT_LIMIT
        told = MessageLimits(int(self.limits.max_message_bytes), int(calls)).variables()
        return replace(self.isolation, env={**self.isolation.env, **told}) if told else self.isolation
