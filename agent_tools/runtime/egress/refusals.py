"""Errors of connections: why one is not made or was cut, as text for the code and for the record."""

from __future__ import annotations

from agent_tools.errors import AgentToolsError


class EgressRefused(AgentToolsError):
    """A connection is not made, or is cut.

    Attributes:
        status: the HTTP status of the answer.
        reason: a few fixed words, for the record.
        explanation: one sentence for the author of the code; it names nothing that the code did not name.
    """

    def __init__(self, status: int, reason: str, explanation: str) -> None:
        super().__init__(explanation)
        self.status = status
        self.reason = reason
        self.explanation = explanation


class NotReached(EgressRefused):
    """A listed host could not be reached, or closed the connection."""

    def __init__(self, reason: str, explanation: str) -> None:
        super().__init__(502, reason, explanation)
