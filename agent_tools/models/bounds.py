"""How large one reply of a model's server may be: its bytes are counted before anything is made of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agent_tools.errors import ModelError
from agent_tools.settings import MIB

MAX_REPLY_BYTES = 64 * MIB
"""Bytes of one reply, all that is sent around its words included."""
MAX_EVENT_BYTES = 16 * MIB
"""Bytes of one event of its stream."""
MAX_CALLS = 128
"""Calls in one reply."""
MAX_NAME_CHARS = 1_000
"""Characters of the name in a call."""
MAX_TOKENS = 2**40
"""Tokens that a reply may say it took; what says more says nothing."""
_ENDS = (b"\n\n", b"\r\r", b"\n\r\n")


def bounded(arriving: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """The bytes of a reply, as long as there are not too many of them, nor in one event.

    Raises:
        ModelError: there are.
    """
    total, since, tail = 0, 0, b""
    for data in arriving:
        total += len(data)
        joined = tail + data
        end = max(joined.rfind(mark) for mark in _ENDS)
        since = since + len(data) if end < 0 else len(joined) - end
        tail = joined[-2:]
        if total > limit:
            raise too_large(f"more than {limit:,} bytes")
        if since > min(limit, MAX_EVENT_BYTES):
            raise too_large(f"more than {MAX_EVENT_BYTES:,} bytes in one piece")
        yield data


def refuse_more_calls(known: int) -> None:
    """Let one more call come after so many.

    Raises:
        ModelError: there are enough.
    """
    if known >= MAX_CALLS:
        raise too_large(f"more than {MAX_CALLS} calls")


def too_large(what: str) -> ModelError:
    """A reply that is not read any further."""
    return ModelError(f"The model's server sent {what} in one reply; it was not read any further.")
