"""One request to the kernel, while it is served."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from agent_tools.execution import Error
from agent_tools.runtime.kernel import escalation
from agent_tools.runtime.kernel.time_limit import TimeLimit


@dataclass(eq=False)
class Request:
    """Its progress, and its last error."""

    request_id: str
    limit: TimeLimit
    cancelled: threading.Event
    state: escalation.State = field(default_factory=escalation.Running)
    error: Error | None = None

    @property
    def is_over(self) -> bool:
        """True once nothing more will happen to it."""
        return isinstance(self.state, escalation.Over)
