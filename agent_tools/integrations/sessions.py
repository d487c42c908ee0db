"""The sandboxes of a framework's sessions: one for each, which ends when it is unused or many came after."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agent_tools import AsyncSandbox
from agent_tools.sandbox.options import Options

if TYPE_CHECKING:
    from agent_tools.code_mode.toolset import HostCallsLike

IDLE_STOP = 900.0  # seconds without use, after which a sandbox is stopped, unless the options say otherwise


class SessionSandboxes:
    """Finds the sandbox of a session; for any thread.

    Args:
        cfg: the options of `agent_tools.CodeInterpreter`. They are checked now, before there is a session.
        most: sessions that keep their sandbox; beyond, the one that was used longest ago is removed.
        hostcalls: what the code can call, as for `Sandbox`.

    Raises:
        InvalidParams: an option is unknown or unusable.
    """

    def __init__(self, cfg: Mapping[str, Any], most: int, hostcalls: HostCallsLike | None = None) -> None:
        self._cfg, self._most, self._hostcalls = {"idle_stop": IDLE_STOP, **cfg}, most, hostcalls
        Options.read(self._cfg)
        self._found: OrderedDict[str, AsyncSandbox] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, session_id: str) -> AsyncSandbox:
        """Return the sandbox of a session; it is made if need be, and starts at its first use."""
        with self._lock:
            found = self._found.pop(session_id, None) or AsyncSandbox(self._cfg, hostcalls=self._hostcalls)
            self._found[session_id] = found
            oldest = self._found.popitem(last=False)[1] if len(self._found) > self._most else None
        if oldest:
            oldest.sync.close()
        return found

    def close(self) -> None:
        """Remove all sandboxes."""
        with self._lock:
            found, self._found = self._found, OrderedDict()
        for sandbox in found.values():
            sandbox.sync.close()
