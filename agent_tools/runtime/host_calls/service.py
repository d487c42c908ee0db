"""The service behind the calls of one session: the functions, their limits, and the wire with the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_tools.guest.wire.calls import MAX_ANSWER_MARKS, pack
from agent_tools.guest.wire.values import Rich
from agent_tools.limits import CallLimits
from agent_tools.runtime.host_calls.function import HostFunction
from agent_tools.runtime.host_calls.wire import CallWire

MAX_ERROR_CHARS = 2_000  # characters of a failed call's message sent to the guest
ROOM_SECONDS = 0.005  # seconds between two checks of a result that waits for the guest to read


@dataclass(eq=False)
class CallService:
    """Sends the answers to calls. `rich` decodes frames, arrays and pictures. Without a wire, answers are dropped."""

    functions: Mapping[str, HostFunction]
    limits: CallLimits
    rich: Rich | None = None
    wire: CallWire | None = None

    def packed(self, head: dict[str, Any], attachments: list[bytes]) -> bytes:
        """A message for the guest.

        Raises:
            TooLarge: it is over the limit.
        """
        return pack(head, attachments, self.limits.max_message_bytes, MAX_ANSWER_MARKS)

    def error(self, number: int, kind: str, message: str, type_name: str = "") -> bytes:
        """Return the answer to a call that failed."""
        head = {"op": "error", "id": number, "kind": kind, "type": type_name, "message": message[:MAX_ERROR_CHARS]}
        return pack(head, [])

    async def room_for(self, answer: bytes) -> bytes:
        """Wait until the guest has read enough, and return the answer."""
        while self.wire and self.wire.is_crowded:  # noqa: ASYNC110  (this loop is often another than the wire's)
            await asyncio.sleep(ROOM_SECONDS)
        return answer

    def send(self, message: bytes) -> None:
        """Send the guest a message."""
        if self.wire:
            self.wire.send(message)

    def reply(self, head: dict[str, Any], attachments: list[bytes]) -> None:
        """Make a message and send it."""
        self.send(self.packed(head, attachments))

    def fail(self, number: int, kind: str, message: str) -> None:
        """Answer a call with an error."""
        self.send(self.error(number, kind, message))

    def set_reading(self, wanted: bool) -> None:
        """Continue or pause reading from the guest."""
        if self.wire:
            self.wire.set_reading(wanted)

    def hang_up(self) -> None:
        """Close the wire, if there is one."""
        if self.wire:
            self.wire.close()
            self.wire = None
