"""The sessions of this machine, which can do more than others: fork, and speak a client's own messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_tools.errors import InvalidParams
from agent_tools.runtime.session.session import Session

if TYPE_CHECKING:
    from agent_tools.runtime.sessions import SessionLike


def local(session: SessionLike, what: str) -> Session:
    """Return a session of this machine. `what` needs one, in words.

    Raises:
        InvalidParams: it is one of another machine.
    """
    if not isinstance(session, Session):
        raise InvalidParams(f"{what} needs a sandbox of this machine; this one is on another. Use engine='docker'.")
    return session
