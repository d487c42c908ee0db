"""The sandboxes of a framework's sessions: one for each, which ends when it is unused or many came after."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agent_tools import AsyncSandbox
from agent_tools.machine.background import Background, do_all
from agent_tools.sandbox.options import Options

if TYPE_CHECKING:
    from agent_tools.code_mode.toolset import HostCallsLike

IDLE_STOP = 900.0  # seconds without use, after which a sandbox is stopped, unless the options say otherwise


class SessionSandboxes:
    """Finds the sandbox of a session; for any thread.

    Args:
        cfg: the options of `agent_tools.CodeInterpreter`. They are checked now, before there is a session.
        most: sessions that keep their sandbox; beyond, the one that was used longest ago is removed, in a thread of its
            own; those that run code stay.
        hostcalls: what the code can call, as for `Sandbox`.

    Raises:
        InvalidParams: an option is unknown or unusable.
    """

    def __init__(self, cfg: Mapping[str, Any], most: int, hostcalls: HostCallsLike | None = None) -> None:
        self._cfg, self._most, self._hostcalls = {"idle_stop": IDLE_STOP, **cfg}, most, hostcalls
        Options.read(self._cfg)
        self._found: OrderedDict[str, AsyncSandbox] = OrderedDict()
        self._lock, self._removals = threading.Lock(), Background()

    def of(self, session_id: str) -> AsyncSandbox:
        """Return the sandbox of a session; it is made if need be, and starts at its first use."""
        with self._lock:
            found = self._found.pop(session_id, None) or AsyncSandbox(self._cfg, hostcalls=self._hostcalls)
            self._found[session_id] = found
            too_many = len(self._found) - self._most
            unused = [
                id_ for id_, each in self._found.items() if too_many > 0 and each is not found and not each.is_busy
            ]
            removed = [self._found.pop(id_) for id_ in unused[: max(too_many, 0)]]
        for each in removed:
            self._removals.do(each.sync.close)  # the caller may be an event loop
        return found

    def close(self) -> None:
        """Remove all sandboxes."""
        with self._lock:
            found, self._found = self._found, OrderedDict()
        try:
            do_all(sandbox.sync.close for sandbox in found.values())
        finally:
            self._removals.join()
