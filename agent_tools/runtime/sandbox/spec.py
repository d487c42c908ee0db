"""The makings of a session, as a value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent_tools.engines.engine import Isolation
from agent_tools.guest.wire.messages import DEFAULT_LIMIT, MessageLimits
from agent_tools.limits import Limits
from agent_tools.runtime.transport.transport import TransportName
from agent_tools.skills.skill import Skill

if TYPE_CHECKING:
    from agent_tools.runtime.host_calls.wire import ServesCalls


@dataclass(frozen=True)
class Ahead:
    """The sandboxes to keep ready for sessions of one kind: how many, and the modules that are imported in them."""

    size: int = 0
    preload: tuple[str, ...] = ()


@dataclass(frozen=True)
class SessionSpec:
    """The makings of a session. `work_dir` exists and is the guest's to write.

    `transport` is 'sockets', 'stdio', or 'auto' for the fastest that works.
    """

    image: str
    work_dir: Path
    isolation: Isolation
    limits: Limits
    transport: TransportName = "auto"
    host_calls: ServesCalls | None = None
    prelude: str = ""
    """Code that every fresh kernel runs before anything else."""
    ahead: Ahead = Ahead()
    is_blank: bool = False
    """True for a sandbox made ahead, whose session, with its host functions, is not known yet."""
    idle_stop: float = 0.0
    """Seconds without use after which the processes of the sandbox are stopped until its next use; 0 for never."""
    checkpoint: bool = False
    """Whether kernels leave copies of themselves, one of which goes on when a kernel is killed."""
    skills: tuple[Skill, ...] = ()
    """Folders to mount read-only below /skills; none of them ever changes."""

    @property
    def telling_isolation(self) -> Isolation:
        """The isolation with the limits on messages in its environment, where they are not the usual ones.

        That of a blank sandbox has them already, from the session that it is like.
        """
        if self.is_blank:
            return self.isolation
        calls = self.host_calls.limits.max_message_bytes if self.host_calls else DEFAULT_LIMIT
        told = MessageLimits(int(self.limits.max_message_bytes), int(calls)).variables()
        return replace(self.isolation, env={**self.isolation.env, **told}) if told else self.isolation
