"""A form with a file, received piece by piece: its parts are bounded, and each piece is counted before it is kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email.message import Message as Header

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.types import Message, Receive

from agent_tools.containers.shares import Shares
from agent_tools.gateway.requests.failures import invalid, too_large
from agent_tools.limits import KIB, MIB

MAX_FIELDS = 16  # beside the file
MAX_FIELD_BYTES = 64 * KIB  # of one field
MAX_FRAME_BYTES = MIB  # of a form without its file
LOOK_EVERY = 16 * MIB  # bytes between two looks at the free disk
_CHARSETS = ("", "utf-8", "utf8", "us-ascii")


@asynccontextmanager
async def file_form(request: Request, shares: Shares, left: Callable[[str], int], most: int) -> AsyncIterator[FormData]:
    """Read the form of a request, with a file of at most `most` bytes; `left` returns what its owner may still keep.

    Raises:
        ApiError: 400, it is not a form; 413, it is too large.
        StorageFull: it exceeds its owner's share.
        DiskFull: the disk is nearly full.
    """
    _check_type(request.headers.get("content-type", ""))
    owner = str(request.scope["owner"])
    room = await run_in_threadpool(left, owner)
    with shares.arriving(owner, room + MAX_FRAME_BYTES) as take:
        counted = _Counted(request.receive, take, shares.check_disk, most)
        async with Request(request.scope, counted).form(
            max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES
        ) as form:
            yield form


class _Counted:
    """Receives a form of `most` bytes beside its frame. `look` checks the disk, in a thread."""

    def __init__(self, receive: Receive, take: Callable[[int], None], look: Callable[[], None], most: int) -> None:
        self._receive = receive
        self._take = take
        self._look = look
        self._most = most
        self._size = 0
        self._next_look = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        size = len(message.get("body", b""))
        self._size += size
        if self._size > self._most + MAX_FRAME_BYTES:
            raise too_large(f"The file is larger than {self._most:,} bytes.", "file_too_large", "file")
        self._take(size)
        if self._size >= self._next_look:
            self._next_look += LOOK_EVERY
            await run_in_threadpool(self._look)
        return message


def _check_type(given: str) -> None:
    """Refuse other character sets: decoding some of them takes as long as a client wants."""
    header = Header()
    header["content-type"] = given
    if header.get_content_type() != "multipart/form-data":
        raise invalid("Send the file as multipart/form-data.", "file")
    if str(header.get_param("charset", "")).lower() not in _CHARSETS:
        raise invalid("Send the form in UTF-8.")
