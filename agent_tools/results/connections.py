"""A network connection of user code, as a value: names and numbers only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ConnectionStatus = Literal["open", "closed", "refused", "failed"]


@dataclass(frozen=True)
class NetworkConnection:
    """One network connection that user code made or tried to make through the egress allowlist.

    A connection that outlives its run is reported as 'open', and again by the next execution.

    Attributes:
        host: the requested name or address; '' if it could not be read.
        port: 0 if it could not be read.
        status: 'refused' if the list does not allow it, 'failed' if it could not be made or broke.
        reason: a few words, '' for 'open' and 'closed'.
        bytes_in: bytes received in this execution.
        bytes_out: bytes sent in this execution.
        duration: seconds since it began.
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
        """The connection in one line for people."""
        ending = f" ({self.reason})" if self.reason else ""
        sizes = f"{self.bytes_in:,} bytes in, {self.bytes_out:,} out"
        return f"{self.host or '?'}:{self.port} {self.status}{ending}, {sizes}, {self.duration:.3g} s"
