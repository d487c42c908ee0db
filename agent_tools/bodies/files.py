"""Files of clients: counted as they arrive, within their owner's share and the free disk, and kept in `data_dir`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email.message import Message as Header
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, BinaryIO, cast

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.types import Message

from agent_tools.bodies.json_body import BodyRefused
from agent_tools.containers.shares import Shares
from agent_tools.limits import KIB, MIB

MAX_FIELDS = 16  # beside the files
MAX_FIELD_BYTES = 64 * KIB  # of one field
MAX_FRAME_BYTES = MIB  # of a form without its files
DISK_CHECK_BYTES = 16 * MIB  # bytes between two looks at the free disk
IN_MEMORY = MIB  # bytes of a file that are kept in memory
_CHARSETS = ("", "utf-8", "utf8", "us-ascii")


@asynccontextmanager
async def file_form(
    request: Request, shares: Shares, left: Callable[[str], int], most: int, max_files: int = 1, share: str = ""
) -> AsyncIterator[FormData]:
    """Read the form of a request, with files of `most` bytes in all; `left` returns the bytes that its owner may still
    store. `share` is counted apart from the owner's, as what an incomplete upload has reserved.

    Raises:
        BodyRefused: 400, it is not a form; 413, it is too large.
        StorageFull: it exceeds its owner's share.
        DiskFull: the disk is nearly full.
    """
    _check_type(request.headers.get("content-type", ""))
    async with _counted(request, shares, left, most, share) as counted:
        limits: dict[str, Any] = {"max_files": max_files, "max_fields": MAX_FIELDS, "max_part_size": MAX_FIELD_BYTES}
        try:
            form = await _Parser(shares.spool(), request.headers, counted.stream(), **limits).parse()
        except MultiPartException as exc:
            raise BodyRefused(400, exc.message) from None
        try:
            yield form
        finally:
            await form.close()


@asynccontextmanager
async def file_body(request: Request, shares: Shares, left: Callable[[str], int], most: int) -> AsyncIterator[BinaryIO]:
    """Read a body that is a file of at most `most` bytes. Errors as for `file_form`."""
    with _spool(shares.spool()) as file:
        async with _counted(request, shares, left, most) as counted:
            async for piece in counted.stream():
                await run_in_threadpool(file.write, piece)
            file.seek(0)
            yield file


def uploaded(form: FormData) -> list[UploadFile]:
    """Return the files of a form, under any name."""
    return [value for _, value in form.multi_items() if isinstance(value, UploadFile)]


@asynccontextmanager
async def _counted(
    request: Request, shares: Shares, left: Callable[[str], int], most: int, share: str = ""
) -> AsyncIterator[Request]:
    """Return a request whose bytes are counted, once, before they are kept."""
    owner, size, next_look = str(request.scope["owner"]), 0, 0
    room = await run_in_threadpool(left, owner)

    async def receive() -> Message:
        nonlocal size, next_look
        message = await request.receive()
        new = len(message.get("body", b""))
        size += new
        if size > most + MAX_FRAME_BYTES:
            raise BodyRefused(413, f"The file is larger than {most:,} bytes.", "file_too_large", "file")
        take(new)
        if size >= next_look:
            next_look += DISK_CHECK_BYTES
            await run_in_threadpool(shares.check_disk)
        return message

    with shares.arriving(share or owner, room + MAX_FRAME_BYTES) as take:
        yield Request(request.scope, receive)


class _Parser(MultiPartParser):
    """Keeps files in a folder of ours, instead of the system's for temporary files, which may be memory."""

    spool_max_size = IN_MEMORY

    def __init__(self, folder: Path, *arguments: Any, **limits: Any) -> None:
        super().__init__(*arguments, **limits)
        self._folder = folder

    def on_headers_finished(self) -> None:
        super().on_headers_finished()
        if self._current_part.file:
            self._current_part.file.file.close()
            self._current_part.file.file = _spool(self._folder)
            self._files_to_close_on_error[-1] = self._current_part.file.file  # type: ignore[call-overload]


def _spool(folder: Path) -> BinaryIO:
    return cast(BinaryIO, SpooledTemporaryFile(IN_MEMORY, dir=str(folder)))


def _check_type(given: str) -> None:
    """Refuse other character sets: a client could make decoding some of them very slow."""
    header = Header()
    header["content-type"] = given
    if header.get_content_type() != "multipart/form-data":
        raise BodyRefused(400, "Send the file as multipart/form-data.", param="file")
    if str(header.get_param("charset", "")).lower() not in _CHARSETS:
        raise BodyRefused(400, "Send the form in UTF-8.")
