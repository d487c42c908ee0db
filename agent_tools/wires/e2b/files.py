"""The routes for files: contents over HTTP, all other operations over Connect."""

from __future__ import annotations

import stat
from collections.abc import Awaitable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, BinaryIO

from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from agent_tools.bodies.files import uploaded
from agent_tools.results.files import FileInfo
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.e2b.state import HOME, ROUTES, E2BRequest, E2BSandbox, check_spared, in_sandbox, path_of
from agent_tools.wires.routing import in_pieces

MAX_FILES = 200  # of one request
MAX_ENTRIES = 10_000  # of one listing
_KINDS = {"folder": "FILE_TYPE_DIRECTORY", "file": "FILE_TYPE_FILE", "link": "FILE_TYPE_SYMLINK"}
Depth = Annotated[int, Field(ge=0, le=2**32)]
MAX_LEVELS = 64  # of folders in a listing


@ROUTES.on("GET", "/files")
async def _download(call: E2BRequest, path: str) -> Any:
    box, full = await call.here(), path_of(path)
    info = await call.use(lambda sandbox: sandbox.stat(in_sandbox(full)), box)
    if info.kind != "file":
        raise HTTPException(400, f"path '{full[:200]}' is a directory")

    def read(offset: int, most: int) -> Awaitable[bytes]:
        return call.use(lambda sandbox: sandbox.read_file(in_sandbox(full), offset=offset, max_bytes=most), box)

    headers = {"Content-Length": str(info.size), "X-Content-Type-Options": "nosniff"}
    return StreamingResponse(in_pieces(info.size, read), media_type="application/octet-stream", headers=headers)


@ROUTES.on("POST", "/files", query=("path",))
async def _upload(call: E2BRequest, path: str = "") -> Any:
    box = await call.here()
    if not call.request.headers.get("content-type", "").startswith("multipart/"):
        async with call.sent_file() as content:
            return [await _written(call, box, path, content)]
    async with call.sent_form(MAX_FILES) as form:
        written = [await _written(call, box, path or file.filename or "", file.file) for file in uploaded(form)]
    if not written:
        raise HTTPException(400, "The request has no file.")
    return written


async def _written(call: E2BRequest, box: E2BSandbox, path: str, content: BinaryIO) -> dict[str, str]:
    full = path_of(path)
    if full == HOME:
        raise HTTPException(400, "path names no file.")
    await call.use(lambda sandbox: sandbox.write_file(in_sandbox(full), content), box)
    return {"name": full.rpartition("/")[2], "type": "file", "path": full}


@ROUTES.on("POST", "/filesystem.Filesystem/Stat")
async def _stat(call: E2BRequest, path: str = "") -> Any:
    full = path_of(path)
    return {"entry": entry_of(await call.use(lambda sandbox: sandbox.stat(in_sandbox(full))), full)}


@ROUTES.on("POST", "/filesystem.Filesystem/ListDir")
async def _list(call: E2BRequest, path: str = "", depth: Depth = 1) -> Any:
    full = path_of(path)
    found = await call.use(lambda sandbox: listed(sandbox, full, depth or 1))
    return {"entries": [entry_of(info, where) for where, info in found]}


@ROUTES.on("POST", "/filesystem.Filesystem/MakeDir")
async def _make_dir(call: E2BRequest, path: str) -> Any:
    full = path_of(path)

    def work(sandbox: Sandbox) -> FileInfo:
        with suppress(FileNotFoundError, NotADirectoryError):
            if sandbox.stat(in_sandbox(full)).is_dir:
                raise HTTPException(409, f"directory already exists: {full[:200]}")
            raise HTTPException(400, f"path already exists but it is not a directory: {full[:200]}")
        sandbox.make_dir(in_sandbox(full))
        return sandbox.stat(in_sandbox(full))

    return {"entry": entry_of(await call.use(work), full)}


@ROUTES.on("POST", "/filesystem.Filesystem/Move")
async def _move(call: E2BRequest, source: str, destination: str) -> Any:
    before, after = path_of(source), path_of(destination)
    check_spared(before)

    def work(sandbox: Sandbox) -> FileInfo:
        sandbox.move(in_sandbox(before), in_sandbox(after))
        return sandbox.stat(in_sandbox(after), follow=False)

    return {"entry": entry_of(await call.use(work), after)}


@ROUTES.on("POST", "/filesystem.Filesystem/Remove")
async def _remove(call: E2BRequest, path: str) -> Any:
    full = path_of(path)
    check_spared(full)

    def work(sandbox: Sandbox) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            sandbox.remove(in_sandbox(full), recursive=True)

    await call.use(work)
    return {}


def listed(sandbox: Sandbox, path: str, depth: int) -> list[tuple[str, FileInfo]]:
    """Return the entries of a folder and, down to a depth, of folders in it, each behind its folder and with its path.

    Raises:
        HTTPException: 413, there are too many.
    """
    found = list[tuple[str, FileInfo]]()
    for info in sandbox.list_files(in_sandbox(path)):
        where = f"{path.rstrip('/')}/{info.name}"
        found.append((where, info))
        if info.is_dir and depth > 1:
            found += listed(sandbox, where, min(depth, MAX_LEVELS) - 1)
        if len(found) > MAX_ENTRIES:
            raise HTTPException(413, f"The folder has more than {MAX_ENTRIES:,} entries: ask for a smaller depth.")
    return found


def entry_of(info: FileInfo, path: str) -> dict[str, Any]:
    """Return a file or folder in this API's form."""
    kind = {"folder": stat.S_IFDIR, "link": stat.S_IFLNK}.get(info.kind, stat.S_IFREG)
    modified = datetime.fromtimestamp(min(max(info.modified, 0.0), 2**33), UTC)
    return {
        "name": _text(path.rpartition("/")[2] or "/"),
        "type": _KINDS.get(info.kind, "FILE_TYPE_UNSPECIFIED"),
        "path": _text(path),
        "size": str(info.size),
        "mode": info.mode,
        "permissions": stat.filemode(kind | info.mode),
        "owner": "user",
        "group": "user",
        "modifiedTime": modified.isoformat().replace("+00:00", "Z"),
    }


def _text(name: str) -> str:
    """Return a name without the halves of characters that no JSON may have."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
