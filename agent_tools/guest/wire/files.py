"""The frames (framing.py) on a socket of the file service, for both ends. Standard library only.

    HEAD      JSON: a request, or its answer (files/service.py)
    CONTENT   a piece of the content behind a request or an answer; an empty one ends it

A HEAD in place of CONTENT says that the rest cannot be read.
"""

import json
from collections.abc import Mapping
from typing import Any

from .framing import pack

HEAD, CONTENT = 1, 2
MAX_HEAD_BYTES = 32 * 1024 * 1024
MAX_PIECE = 1024 * 1024
HEADS = {HEAD: MAX_HEAD_BYTES}
PIECES = {CONTENT: MAX_PIECE, HEAD: 4096}  # a HEAD in place of a piece is an error


def pack_head(head: Mapping[str, Any]) -> bytes:
    """Return a request or an answer as a frame."""
    return pack(HEAD, json.dumps(head).encode())
