"""The frames of a client's WebSocket, counted: small ones cost a server more than their bytes.

Format: https://www.rfc-editor.org/rfc/rfc6455#section-5.2. Frames that break it are refused by the server that reads
them.
"""

from __future__ import annotations

from agent_tools.limits import KIB

BURST = 1_000  # frames that may come at once
RATE = 50  # further frames each second
BYTES_A_FRAME = KIB  # bytes that buy one frame more
_LENGTHS = {126: 2, 127: 8}  # bytes of a longer length
_CONTROL = 8  # the first opcode of control frames, which may come between the pieces of a message


class FrameBudget:
    """Counts the frames in the bytes of one client, from `now` on.

    Attributes:
        is_between: no message has begun that has not ended.
    """

    def __init__(self, now: float) -> None:
        self.is_between = True
        self._left, self._counted_at = float(BURST), now
        self._head = b""  # the beginning of a frame
        self._skip = 0  # bytes of a payload that are to come
        self._is_final = True

    def spend(self, data: bytes, now: float) -> bool:
        """Count the frames that begin in `data`; return False if they are too many."""
        earned = (now - self._counted_at) * RATE + len(data) / BYTES_A_FRAME
        self._left, self._counted_at = min(BURST, self._left + earned), now
        at, self._skip = self._skip, max(0, self._skip - len(data))
        if not self._skip:
            self._read(self._head + data[at:])
        self.is_between = self._is_final and not self._head and not self._skip
        return self._left >= 0

    def _read(self, data: bytes) -> None:
        at = 0
        while len(data) >= at + 2 and self._left >= 0:
            size = data[at + 1] & 0x7F
            extra = _LENGTHS.get(size, 0)
            end = at + 2 + extra + (4 if data[at + 1] & 0x80 else 0)
            if len(data) < end:
                break
            if data[at] & 0x0F < _CONTROL:
                self._is_final = bool(data[at] & 0x80)
            at = end + (int.from_bytes(data[at + 2 : at + 2 + extra], "big") if extra else size)
            self._left -= 1
        self._head, self._skip = data[at:], max(0, at - len(data))
