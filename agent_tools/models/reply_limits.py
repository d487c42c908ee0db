"""The limits of one reply of a model server: bytes are counted before they are parsed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agent_tools.errors import ModelError
from agent_tools.limits import MIB

MAX_REPLY_BYTES = 64 * MIB  # bytes of one reply as they are sent, JSON and event names included
MAX_EVENT_BYTES = 16 * MIB  # bytes of one event of its stream
MAX_CALLS = 128  # calls in one reply
MAX_NAME_CHARS = 1_000  # characters of the name in a call
MAX_TOKENS = 2**40  # tokens that a reply may report; a larger number is ignored
END = b"[DONE]"
"""The last event of a stream."""
_ENDS = (b"\n\n", b"\r\r", b"\n\r\n")


class Bounded(Iterator[bytes]):
    """The bytes of a reply, counted, and those of each event.

    Raises:
        ModelError: there are more than the limit.
    """

    def __init__(self, arriving: Iterable[bytes], limit: int) -> None:
        self._arriving = iter(arriving)
        self._limit = limit
        self._total = self._since = 0
        self._tail = b""

    def __next__(self) -> bytes:
        data = next(self._arriving)
        self._total += len(data)
        joined = self._tail + data
        end = max(joined.rfind(mark) for mark in _ENDS)
        self._since = self._since + len(data) if end < 0 else len(joined) - end
        self._tail = joined[-2:]
        if self._total > self._limit:
            raise too_large(f"more than {self._limit:,} bytes")
        if self._since > min(self._limit, MAX_EVENT_BYTES):
            raise too_large(f"more than {MAX_EVENT_BYTES:,} bytes in one piece")
        return data


def refuse_more_calls(known: int) -> None:
    """Check that a reply with `known` calls may have one more.

    Raises:
        ModelError: it has all the calls it may have.
    """
    if known >= MAX_CALLS:
        raise too_large(f"more than {MAX_CALLS} calls")


def too_large(what: str) -> ModelError:
    """Return the error of a reply that is too large."""
    return ModelError(f"The model's server sent {what} in one reply; the rest was not read.")
