"""The socket for a kernel's host calls: served at once, or kept for a later session."""

from __future__ import annotations

import socket

from agent_tools.runtime.sandbox.session_spec import SessionSpec


class CallLine:
    """The socket for host calls of the present kernel. Call it with the session's lock."""

    def __init__(self) -> None:
        self._kept: socket.socket | None = None

    def connect(self, calls: socket.socket, spec: SessionSpec) -> None:
        """Serve the socket of a fresh kernel, keep it, or close it if no session will serve it."""
        self.close()
        self._kept = calls
        if not spec.is_blank:
            self.serve(spec)

    def serve(self, spec: SessionSpec) -> None:
        """Serve the socket that was kept, if the session has functions."""
        calls, self._kept = self._kept, None
        if calls and spec.host_calls:
            from agent_tools.runtime.host_calls.wire import CallWire  # which imports asyncio; most sessions need none

            spec.host_calls.serve(CallWire(calls, spec.host_calls.limits.max_message_bytes))
        elif calls:
            calls.close()

    def close(self) -> None:
        """Close what is kept."""
        if self._kept:
            self._kept.close()
            self._kept = None
