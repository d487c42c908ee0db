"""The seam to whatever carries messages between callers and hosts. Ray does; so does a plain call in one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from agent_tools.errors import AgentToolsError

CONTROL = ("greet", "facts", "load", "renew", "cancel", "drop", "order", "reserve")
"""Methods of a host that answer at once, whatever else it does."""
WORK = (
    *("open", "close", "release", "do", "file"),
    *("put_piece", "get_piece", "spool", "ensure_image"),
)
"""Methods that take a while."""
RUNS = ("begin", "more")
"""Methods that wait as long as the code does: for the first items of what goes on, and for the next."""


class HostGone(AgentToolsError):
    """A host does not answer. `is_final` if it never will: its process, or its node, has ended."""

    def __init__(self, message: str, is_final: bool = False) -> None:
        super().__init__(message, is_final)
        self.message = message
        self.is_final = is_final

    def __str__(self) -> str:
        return self.message


class HostLink(Protocol):
    """One host as a caller reaches it. Any thread may call any method; what the host raises is raised here."""

    @property
    def name(self) -> str:
        """The host's name: the same as long as its node is."""
        ...

    def call(self, method: str, *arguments: Any, seconds: float | None = None) -> Any:
        """Call a method of the host, once; wait so long at most, for None as long as it takes.

        Raises:
            HostGone: it does not answer. It may have done what it was asked all the same.
        """
        ...

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method and wait for nothing; a host that is gone is no error."""
        ...


class Hosts(Protocol):
    """All hosts that there are."""

    def links(self) -> Sequence[HostLink]:
        """Return the hosts as they are known now. Raises EngineUnavailable: nobody can tell which there are."""
        ...

    def close(self) -> None:
        """Let go of them; hosts that serve others go on."""
        ...
