"""Files: listed, read, written, streamed. Those in HOME are read on the host if it has them, else in the sandbox."""

from __future__ import annotations

import contextlib
import mimetypes
import os
import posixpath
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace as replaced
from functools import partial
from typing import Any, TypeVar

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from agent_tools.limits import MIB
from agent_tools.machine.folder import safe_name
from agent_tools.results.file_info import FileInfo
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.terminal import requests as asked
from agent_tools.wires.terminal.callers import HOME, Caller, caller_of, in_sandbox, inside, resolved
from agent_tools.wires.terminal.requests import Json, body_of, query_of, unusable
from agent_tools.wires.terminal.rooms import PATIENCE, Rooms, aside, rooms_of
from agent_tools.wires.terminal.searches import command

MAX_TEXT = 16 * MIB  # of a file that is read as text
PIECE = MIB
ARCHIVE_SECONDS = 280.0  # Open WebUI gives a request 300
QUEUED = 8  # pieces of an archive that wait for a slow client
SLOW_SECONDS = 60.0  # in which a client takes a piece
_SPARED = ("/", HOME)
T = TypeVar("T")


async def get_cwd(request: Request) -> Response:
    """GET /files/cwd."""
    cwd = rooms_of(request).cwd(caller_of(request))
    return Json({"cwd": cwd, "home": HOME, "root": {"path": HOME, "label": "Home"}})


async def set_cwd(request: Request) -> Response:
    """POST /files/cwd."""
    path = resolved((await body_of(request, asked.PathQuery)).path)
    rooms, caller = _who(request)
    with _not_found("Directory not found"):
        if path != HOME and not (await _stat(rooms, caller, path)).is_dir:
            raise NotADirectoryError
    rooms.change_cwd(caller, path)
    return Json({"cwd": path})


async def list_files(request: Request) -> Response:
    """GET /files/list."""
    rooms, caller = _who(request)
    path = _here(rooms, caller, query_of(request, asked.FolderQuery).directory)
    entries = await _on_host(rooms, caller, path, rooms.contents.entries)
    with _not_found("Directory not found"):
        if entries is None or any(each.kind == "link" for each in entries):
            entries = await rooms.look(caller, partial(_listed, in_sandbox(path))) or entries
        if entries is None and path != HOME:
            raise FileNotFoundError
    writable = _is_writable(path)
    shown = [{**_shown(each), "writable": writable} for each in entries or ()]
    return Json({"dir": path, "writable": writable, "entries": shown})


async def read(request: Request) -> Response:
    """GET /files/read: a text as JSON, a picture as it is."""
    given, (rooms, caller) = query_of(request, asked.ReadQuery), _who(request)
    path = _here(rooms, caller, given.path)
    async with _opened(rooms, caller, path) as (size, pieces):
        if size > MAX_TEXT:
            message = f"The file has {size:,} bytes, more than {MAX_TEXT:,}: read it in parts, with run_python."
            raise HTTPException(413, message)
        data = b"".join([piece async for piece in pieces])
    try:
        text = data.decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        mime = mimetypes.guess_type(path)[0] or "application/octet-stream"
        if mime.startswith("image/"):
            return Response(data, media_type=mime)
        raise HTTPException(415, f"No text: {mime}, {size:,} bytes. Read it with run_python.") from None
    lines = text.splitlines(keepends=True)
    some = lines[(given.start_line or 1) - 1 : given.end_line]
    return Json({"path": path, "content": "".join(some), "total_lines": len(lines)})


async def display(request: Request) -> Response:
    """GET /files/display: Open WebUI opens the panel by this."""
    rooms, caller = _who(request)
    path = _here(rooms, caller, query_of(request, asked.PathQuery).path)
    try:
        is_there = not (await _stat(rooms, caller, path)).is_dir
    except (HTTPException, OSError):
        is_there = False
    return Json({"path": path, "exists": is_there})


async def view(request: Request) -> Response:
    """GET /files/view and /files/serve/PATH: the bytes of a file, piece by piece."""
    (rooms, caller), served = _who(request), request.path_params.get("path")
    path = resolved(f"/{served}" if served is not None else query_of(request, asked.PathQuery).path)
    opening = _opened(rooms, caller, path)
    size, pieces = await opening.__aenter__()  # it stays open until all is sent

    async def sent() -> AsyncIterator[bytes]:
        try:
            async for piece in pieces:
                yield piece
        finally:
            await opening.__aexit__(None, None, None)

    mime = mimetypes.guess_type(path)[0] or "application/octet-stream"
    return StreamingResponse(sent(), media_type=mime, headers={"Content-Length": str(size)})


async def write(request: Request) -> Response:
    """POST /files/write."""
    given, (rooms, caller) = await body_of(request, asked.WriteBody), _who(request)
    path, data = _here(rooms, caller, given.path), given.content.encode("utf-8", "surrogatepass")
    await rooms.use(caller, lambda sandbox: sandbox.write_file(in_sandbox(path), data))
    return Json({"path": path, "size": len(data)})


async def replace(request: Request) -> Response:
    """POST /files/replace."""
    given, (rooms, caller) = await body_of(request, asked.ReplaceBody), _who(request)
    path = _here(rooms, caller, given.path)

    def work(sandbox: Sandbox) -> int:
        data = sandbox.read_file(in_sandbox(path), max_bytes=MAX_TEXT + 1)
        if len(data) > MAX_TEXT:
            raise HTTPException(413, f"The file has more than {MAX_TEXT:,} bytes: change it with run_python.")
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise HTTPException(415, "The file is no text.") from None
        for each in given.replacements:
            text = _replaced(text, each)
        sandbox.write_file(in_sandbox(path), text)
        return len(text.encode())

    await _must_exist(rooms, caller)
    return Json({"path": path, "size": await rooms.use(caller, work)})


async def upload(request: Request) -> Response:
    """POST /files/upload: a form with a file, which only its last part names."""
    rooms, caller = _who(request)
    directory = resolved(query_of(request, asked.FolderQuery).directory)
    async with request.form(max_files=1, max_fields=8) as form:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise unusable({"type": "missing", "loc": ["body", "file"], "msg": "Field required"})
        path = posixpath.join(directory, posixpath.basename(file.filename or "") or "upload")
        size, content = file.size or 0, file.file
        await rooms.use(caller, lambda sandbox: sandbox.write_file(in_sandbox(path), content))
    return Json({"path": path, "size": size})


async def mkdir(request: Request) -> Response:
    """POST /files/mkdir."""
    path = resolved((await body_of(request, asked.PathQuery)).path)
    await rooms_of(request).use(caller_of(request), lambda sandbox: sandbox.make_dir(in_sandbox(path)))
    return Json({"path": path})


async def delete(request: Request) -> Response:
    """DELETE /files/delete."""
    path, (rooms, caller) = resolved(query_of(request, asked.PathQuery).path), _who(request)
    if path in _SPARED:
        raise HTTPException(400, "The home directory itself stays.")
    await _must_exist(rooms, caller)

    def work(sandbox: Sandbox) -> str:
        with _not_found("Path not found"):
            kind = sandbox.stat(in_sandbox(path), follow=False).kind
        sandbox.remove(in_sandbox(path), recursive=True)
        return "directory" if kind == "folder" else "file"

    return Json({"path": path, "type": await rooms.use(caller, work)})


async def move(request: Request) -> Response:
    """POST /files/move."""
    given, (rooms, caller) = await body_of(request, asked.MoveBody), _who(request)
    source, to = resolved(given.source), resolved(given.destination)
    if source in _SPARED:
        raise HTTPException(400, "The home directory itself stays.")
    await _must_exist(rooms, caller)

    def work(sandbox: Sandbox) -> None:
        with _not_found("Source path not found"):
            sandbox.stat(in_sandbox(source), follow=False)
        if not _is_folder(sandbox, posixpath.dirname(to)):
            raise HTTPException(400, "Destination parent directory not found")
        if sandbox.exists(in_sandbox(to)):
            raise HTTPException(409, "Destination already exists")
        sandbox.move(in_sandbox(source), in_sandbox(to))

    await rooms.use(caller, work)
    return Json({"source": source, "destination": to})


async def archive(request: Request) -> Response:
    """POST /files/archive: a zip, made in the sandbox and sent as it is made."""
    paths, (rooms, caller) = (await body_of(request, asked.ArchiveBody)).paths, _who(request)
    if not paths:
        raise HTTPException(400, "No paths provided")
    await _must_exist(rooms, caller)
    found = [resolved(path) for path in paths]
    output = _Output(rooms, caller, command("archive", paths=[in_sandbox(path) for path in found]))
    if not (first := await aside(output.read)):
        raise output.failure or HTTPException(404, "Path not found")
    name = safe_name(posixpath.basename(found[0]) or "archive") if len(found) == 1 else "download"
    headers = {"Content-Disposition": f'attachment; filename="{name.encode("ascii", "replace").decode()}.zip"'}

    async def sent() -> AsyncIterator[bytes]:
        piece = first
        try:
            while piece:
                yield piece
                piece = await aside(output.read)
        finally:
            output.close()
        if output.failure:
            raise output.failure  # which cuts the answer off, so that it does not look whole

    return StreamingResponse(sent(), media_type="application/zip", headers=headers)


# -- parts --------------------------------------------------------------------------------------------------------


class _Output:
    """The output of a command while it runs, in a thread. A client that reads nothing for a while ends it."""

    def __init__(self, rooms: Rooms, caller: Caller, argv: list[str]) -> None:
        self.failure: Exception | None = None
        self._pieces: queue.Queue[bytes] = queue.Queue(QUEUED)
        self._is_closed = threading.Event()
        threading.Thread(target=self._run, args=(rooms, caller, argv), name="terminal-archive", daemon=True).start()

    def read(self) -> bytes:
        """Wait for the next piece; b'' at the end."""
        return self._pieces.get()

    def close(self) -> None:
        """End the command."""
        self._is_closed.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._pieces.get_nowait()

    def _run(self, rooms: Rooms, caller: Caller, argv: list[str]) -> None:
        try:
            with rooms.containers.used(rooms.ensure(caller).id, PATIENCE) as (sandbox, _):
                ended = sandbox.run_command(argv, timeout=ARCHIVE_SECONDS, max_output=1, on_output=self._put)
                if not ended.ok and ended.reason:
                    self.failure = HTTPException(504, f"The archive was not finished: {ended.reason}.")
        except Exception as exc:  # noqa: BLE001  (the outermost loop of a thread: `read` ends, and its caller raises it)
            self.failure = exc
        with contextlib.suppress(queue.Full):
            self._pieces.put(b"", timeout=SLOW_SECONDS)

    def _put(self, stream: str, data: bytes) -> None:
        if self._is_closed.is_set():
            raise TimeoutError("The client has left.")
        if stream == "stdout":
            self._pieces.put(data, timeout=SLOW_SECONDS)


def _who(request: Request) -> tuple[Rooms, Caller]:
    return rooms_of(request), caller_of(request)


@contextlib.contextmanager
def _not_found(detail: str) -> Iterator[None]:
    """Answer 404 with this sentence where a path leads to nothing."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise HTTPException(404, detail) from None


def _here(rooms: Rooms, caller: Caller, path: str) -> str:
    return resolved(path, rooms.cwd(caller))


async def _must_exist(rooms: Rooms, caller: Caller) -> None:
    """Raise 404 where the caller has no container, and so no files."""
    if await aside(rooms.find, caller) is None:
        raise HTTPException(404, "File not found")


async def _on_host(rooms: Rooms, caller: Caller, path: str, read: Callable[[str, str], T | None]) -> T | None:
    """Return what `read` finds of a container's id and a name in HOME; None if the host does not have it."""
    name = inside(path)

    def found() -> T | None:
        row = rooms.find(caller)
        return read(row.id, name or "") if row and rooms.is_current(row.id) else None

    return None if name is None else await aside(found)


async def _stat(rooms: Rooms, caller: Caller, path: str) -> FileInfo:
    """Return a file or folder.

    Raises:
        HTTPException: 404, there is none.
    """
    info = await _on_host(rooms, caller, path, rooms.contents.stat)
    if info is None or info.kind == "link":
        info = await rooms.look(caller, lambda sandbox: sandbox.stat(in_sandbox(path)))
    if info is None:
        raise HTTPException(404, "File not found")
    return info


@contextlib.asynccontextmanager
async def _opened(rooms: Rooms, caller: Caller, path: str) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
    """Open a file; give its size and its bytes in pieces, never more than its size.

    Raises:
        HTTPException: 404, there is no such file.
    """
    with ExitStack() as stack:
        file = await _on_host(
            rooms, caller, path, lambda id_, name: stack.enter_context(rooms.contents.opened(id_, name))
        )
        if file is not None:
            size = os.fstat(file.fileno()).st_size

            def read(_: int, most: int) -> bytes | None:
                return file.read(most)

            yield size, _pieces(size, partial(aside, read))
            return
        info = await _stat(rooms, caller, path)
        if info.kind != "file":
            raise HTTPException(404, "File not found")

        def asked_for(offset: int, most: int) -> Any:
            return rooms.look(
                caller, lambda sandbox: sandbox.read_file(in_sandbox(path), offset=offset, max_bytes=most)
            )

        yield info.size, _pieces(info.size, asked_for)


async def _pieces(size: int, read: Callable[[int, int], Awaitable[bytes | None]]) -> AsyncIterator[bytes]:
    sent = 0
    while sent < size and (piece := await read(sent, min(PIECE, size - sent))):
        sent += len(piece)
        yield piece


def _listed(path: str, sandbox: Sandbox) -> list[FileInfo]:
    return [_followed(each, sandbox) for each in sandbox.list_files(path)]


def _followed(info: FileInfo, sandbox: Sandbox) -> FileInfo:
    """Return what a link leads to, under the link's name."""
    if info.kind != "link":
        return info
    with contextlib.suppress(OSError):
        return replaced(sandbox.stat(info.path), name=info.name)
    return info


def _is_folder(sandbox: Sandbox, path: str) -> bool:
    return sandbox.exists(in_sandbox(path)) and sandbox.stat(in_sandbox(path)).is_dir


def _is_writable(path: str) -> bool:
    return inside(path) is not None or path == "/tmp" or path.startswith("/tmp/")


def _shown(info: FileInfo) -> dict[str, Any]:
    kind = "directory" if info.is_dir else "file"
    return {"name": info.name, "type": kind, "size": info.size, "modified": info.modified}


def _replaced(text: str, each: asked.Replacement) -> str:
    """Return a text with one replacement made, within its lines.

    Raises:
        HTTPException: 400, the target is not there, or several times.
    """
    lines = text.splitlines(keepends=True)
    first = (each.start_line or 1) - 1
    before, part = "".join(lines[:first]), "".join(lines[first : each.end_line])
    count = part.count(each.target)
    if not count:
        raise HTTPException(400, f"Target string not found: {each.target[:100]!r}")
    if count > 1 and not each.allow_multiple:
        raise HTTPException(400, f"Found {count} occurrences of target string but allow_multiple is false")
    return before + part.replace(each.target, each.replacement) + text[len(before) + len(part) :]
