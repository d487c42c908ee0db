"""Refusals: why a connection of the code is not made or not carried on, as it is told and as it is recorded."""

from __future__ import annotations

from agent_tools.errors import AgentToolsError


class Refused(AgentToolsError):
    """A connection is not made, or is cut.

    Attributes:
        status: the HTTP status that says so.
        reason: a few fixed words, for the record.
        told: one sentence for whoever wrote the code; it names nothing that the code did not.
    """

    def __init__(self, status: int, reason: str, told: str) -> None:
        super().__init__(told)
        self.status = status
        self.reason = reason
        self.told = told


class NotReached(Refused):
    """A listed host could not be reached, or broke off."""

    def __init__(self, reason: str, told: str) -> None:
        super().__init__(502, reason, told)
