"""A connection of the code on its network by list, as a value: names and numbers only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ConnectionStatus = Literal["open", "closed", "refused", "failed"]


@dataclass(frozen=True)
class NetworkConnection:
    """One connection that the code made through its network by list, or would have made.

    One that goes on when a run ends is told as 'open', and again with what followed in the execution after that.

    Attributes:
        host: the name or address asked for; '' if none could be read.
        port: 0 if none could be read.
        status: 'refused' where the list does not allow it, 'failed' where it could not be made or was cut.
        reason: a few words, '' for 'open' and 'closed'.
        bytes_in: bytes that came in; in this execution.
        bytes_out: bytes that went out; in this execution.
        duration: seconds since it was begun.
    """

    host: str
    port: int
    status: ConnectionStatus
    reason: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    duration: float = 0.0

    @property
    def text(self) -> str:
        """One line for people."""
        ending = f" ({self.reason})" if self.reason else ""
        sizes = f"{self.bytes_in:,} bytes in, {self.bytes_out:,} out"
        return f"{self.host or '?'}:{self.port} {self.status}{ending}, {sizes}, {self.duration:.3g} s"
