"""Jupyter messages on one byte stream between a kernel and the host. Standard library only.

Each is a frame of parts (framing.py), whose kind is the channel: header, parent header, metadata, content, a JSON
object each; then buffers. They are the parts of Jupyter's wire protocol without identities and signature: the stream
has one reader at each end, and the guest would hold the key anyway.
https://jupyter-client.readthedocs.io/en/stable/messaging.html

All channels share the stream, so messages keep the order in which they were sent: once the reply to a request has
come, everything that was sent before it has come, too.
"""

from .framing import FrameReader, split

SHELL, IOPUB, CONTROL, STDIN = range(1, 5)
MIN_PARTS, MAX_PARTS = 4, 64
MAX_REQUEST_BYTES = 65 * 1024 * 1024  # of one message to the kernel


class MessageReader(FrameReader["tuple[int, list[bytes]]"]):
    """Cuts a byte stream into messages: the channel and the parts of each."""

    def __init__(self, max_message_bytes: int) -> None:
        super().__init__(dict.fromkeys(range(SHELL, STDIN + 1), max_message_bytes).get, _message)


def _message(channel: int, payload: bytes) -> "tuple[int, list[bytes]]":
    return channel, split(payload, MIN_PARTS, MAX_PARTS)
