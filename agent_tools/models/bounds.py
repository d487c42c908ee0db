"""The limits of one reply of a model's server: bytes are counted before anything is made of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agent_tools.errors import ModelError
from agent_tools.settings import MIB

MAX_REPLY_BYTES = 64 * MIB  # bytes of one reply as they are sent, JSON and event names included
MAX_EVENT_BYTES = 16 * MIB  # bytes of one event of its stream
MAX_CALLS = 128  # calls in one reply
MAX_NAME_CHARS = 1_000  # characters of the name in a call
MAX_TOKENS = 2**40  # tokens that a reply may report; a larger number is ignored
_ENDS = (b"\n\n", b"\r\r", b"\n\r\n")


def bounded(arriving: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """Pass the bytes of a reply on, and count those of the reply and of each event.

    Raises:
        ModelError: there are more than the limit.
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
    """Check that a reply with `known` calls may have one more.

    Raises:
        ModelError: it has all the calls it may have.
    """
    if known >= MAX_CALLS:
        raise too_large(f"more than {MAX_CALLS} calls")


def too_large(what: str) -> ModelError:
    """Return the error of a reply that is not read any further."""
    return ModelError(f"The model's server sent {what} in one reply; it was not read any further.")
