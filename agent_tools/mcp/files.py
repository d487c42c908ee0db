"""The tools that write, read and list files."""

from __future__ import annotations

import base64
import binascii
import io

import anyio.to_thread
from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextResourceContents,
)

from agent_tools.containers.contents import Contents
from agent_tools.containers.failures import ContainerFileNotFound, FileTooLarge
from agent_tools.errors import InvalidParams
from agent_tools.limits import MIB
from agent_tools.mcp.answers import MAX_LINKS, file_of, link_to, mime_of, said
from agent_tools.mcp.names import read_path, uri_of
from agent_tools.mcp.services import McpCall
from agent_tools.mcp.shapes import FileListing, GetFile, Got, InContainer, Put, PutFile
from agent_tools.text import fence, neutralise, one_line

_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")

# Of one answer.
MAX_LISTED = 1_000
MAX_TEXT_BYTES = 200_000  # of a file as text; `offset` has the rest
MAX_BLOB_BYTES = 8 * MIB  # of a file that is sent whole, as base64


async def put_file(call: McpCall, given: PutFile) -> CallToolResult:
    """Write a file."""
    path = read_path(given.path)
    data = await anyio.to_thread.run_sync(_bytes_of, given)
    container = call.container(given.container, make=True)
    await call.aside(call.services.contents.put, container, path, io.BytesIO(data))
    file = file_of(container, path, len(data))
    text = f"container: {container}\n{one_line(path)} is written ({len(data):,} bytes)."
    return said(text, Put(container=container, file=file), link_to(file))


async def get_file(call: McpCall, given: GetFile) -> CallToolResult:
    """Read a file: text from an offset on, pictures and others whole."""
    path = read_path(given.path)
    container = call.container(given.container)
    return await call.aside(_got, container, call.services.contents, path, given)


def _got(container: str, contents: Contents, path: str, given: GetFile) -> CallToolResult:
    data, size = _read(container, contents, path, given.offset)
    file, mime = file_of(container, path, size), mime_of(path)
    text = _as_text(data[:MAX_TEXT_BYTES])
    if text is None or mime in _PICTURES:
        if given.offset or len(data) < size:
            raise FileTooLarge(f"{one_line(path)} has {size:,} bytes, and is not text: read a part with run_python.")
        block: ContentBlock = EmbeddedResource(resource=blob_of(file.uri, mime, data))
        if mime in _PICTURES:
            block = ImageContent(data=base64.b64encode(data).decode(), mime_type=mime)
        told = f"container: {container}\n{one_line(path)} ({size:,} bytes, {mime})"
        return said(told, Got(container=container, file=file, mime_type=mime), block)
    end = given.offset + min(len(data), MAX_TEXT_BYTES)
    rest = f"\n{size - end:,} bytes are left: offset={end}" if end < size else ""
    got = Got(container=container, file=file, mime_type=mime, text=text, next_offset=end if end < size else None)
    return said(f"container: {container}\n{one_line(path)}:\n\n{fence(text)}{rest}", got)


async def list_files(call: McpCall, given: InContainer) -> CallToolResult:
    """List the files of the working directory."""
    container = call.container(given.container)
    snapshot, is_complete = await call.aside(call.services.contents.listed, container)
    found = sorted(snapshot.items())
    files = [file_of(container, name, facts[0]) for name, facts in found[:MAX_LISTED]]
    lines = [f"{one_line(each.path)} ({each.size:,} bytes)" for each in files]
    left_out = len(found) - len(files)
    shown = fence("\n".join(lines + [f"and {left_out:,} more"] * bool(left_out))) if lines else "There are no files."
    shown += "" if is_complete else "\nNot all files could be read: some may be missing here."
    return said(f"container: {container}\n{shown}", FileListing(container=container, files=files, left_out=left_out))


async def contents_of(call: McpCall, container: str, path: str) -> TextResourceContents | BlobResourceContents:
    """Return a file as a resource.

    Raises:
        ContainersError: there is no such file, or it is too large to be given whole.
    """
    return await call.aside(_whole, container, call.services.contents, path)


def _whole(container: str, contents: Contents, path: str) -> TextResourceContents | BlobResourceContents:
    data, size = _read(container, contents, path, 0)
    if len(data) < size:
        raise FileTooLarge(f"{one_line(path)} has {size:,} bytes, more than {MAX_BLOB_BYTES:,}.")
    uri, mime, text = uri_of(container, path), mime_of(path), _as_text(data)
    if text is None or mime in _PICTURES:
        return blob_of(uri, mime, data)
    return TextResourceContents(uri=uri, mime_type=mime if mime.startswith("text/") else "text/plain", text=text)


async def first_files(call: McpCall, container: str) -> tuple[list[tuple[str, int]], bool]:
    """Return the names and sizes in bytes of the newest files, and whether these are all."""
    found, is_complete = await anyio.to_thread.run_sync(call.services.contents.listed, container)
    newest = sorted(found.items(), key=lambda each: -each[1][1])[:MAX_LINKS]
    return [(name, facts[0]) for name, facts in newest], is_complete and len(found) <= MAX_LINKS


def _read(container: str, contents: Contents, path: str, offset: int) -> tuple[bytes, int]:
    """Return bytes of a file, as many as an answer may have at most, and its size."""
    with contents.opened(container, path) as content:
        if content is None:
            raise ContainerFileNotFound(path)
        size = content.seek(0, io.SEEK_END)
        content.seek(min(offset, size))
        return content.read(MAX_BLOB_BYTES), size


def _as_text(data: bytes) -> str | None:
    """Return text made safe to show, None for what is none; characters that are cut at an end are replaced."""
    if b"\0" in data:
        return None
    text = data.decode("utf-8", "replace")
    return None if "\ufffd" in text[3:-3] else neutralise(text)


def _bytes_of(given: PutFile) -> bytes:
    if given.encoding != "base64":
        return given.content.encode("utf-8", "replace")
    try:
        return base64.b64decode(given.content, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidParams("The content is no base64: send it so, or as text with encoding='utf-8'.") from exc


def blob_of(uri: str, mime: str, data: bytes) -> BlobResourceContents:
    """Return bytes as a resource."""
    return BlobResourceContents(uri=uri, mime_type=mime, blob=base64.b64encode(data).decode())
