"""The routes for files. They are read in the sandbox while one runs, else on the host, which has HOME alone."""

from __future__ import annotations

import contextlib
import mimetypes
import os
import posixpath
import re
from array import array
from bisect import bisect_left
from collections.abc import AsyncGenerator, Iterator
from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from agent_tools.bodies.files import uploaded
from agent_tools.bodies.json_body import at_most
from agent_tools.limits import KIB, MIB
from agent_tools.results.files import FileInfo
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.routing import aside, in_pieces, unusable
from agent_tools.wires.terminal.state import HOME, ROUTES, TerminalRequest, check_spared, in_sandbox, inside, resolved

MAX_TEXT = 16 * MIB  # of a file that is read as text
_LINE_END = re.compile(r"\r\n|\r|\n")
_CRLF = re.compile(r"\r\n")
BLOCK = 64 * KIB  # characters whose lines are counted at once
Line = Annotated[int, Field(ge=1, le=2**53)] | None
Path = Annotated[str, Field(description="A path; a relative one counts from the working directory.")]
FIRST = Field(description="The first line, from 1.")
LAST = Field(description="The last line, which is included.")


class Replacement(BaseModel):
    """One replacement in a text."""

    target: Annotated[str, Field(min_length=1, description="The exact text to find.")]
    replacement: Annotated[str, Field(description="The text to put in its place.")]
    start_line: Annotated[Line, Field(description="Look from this line on.")] = None
    end_line: Annotated[Line, Field(description="Look up to this line.")] = None
    allow_multiple: Annotated[bool, Field(description="Replace all places; otherwise there must be one.")] = False


@ROUTES.on("GET", "/files/cwd")
async def _get_cwd(call: TerminalRequest) -> Any:
    return {"cwd": call.cwd, "home": HOME, "root": {"path": HOME, "label": "Home"}}


@ROUTES.on("POST", "/files/cwd")
async def _set_cwd(call: TerminalRequest, path: str) -> Any:
    path = resolved(path)
    with not_found("Directory not found"):
        if path != HOME and not (await stat_of(call, path)).is_dir:
            raise NotADirectoryError
    call.change_cwd(path)
    return {"cwd": path}


@ROUTES.on("GET", "/files/list", is_tool=True)
async def list_files(
    call: TerminalRequest, directory: Annotated[str, Field(description="The folder to list.")] = "."
) -> Any:
    """List a folder."""
    path = call.path(directory)
    try:
        entries = await call.query_files(
            path, lambda sandbox: sandbox.list_files(in_sandbox(path), follow=True), call.wire.contents.entries
        )
    except (FileNotFoundError, NotADirectoryError):
        if path != HOME:
            raise HTTPException(404, "Directory not found") from None
        entries = []
    is_writable = inside(path) is not None or f"{path}/".startswith("/tmp/")
    shown = [
        {
            "name": each.name,
            "type": "directory" if each.is_dir else "file",
            "size": each.size,
            "modified": each.modified,
            "writable": is_writable,
        }
        for each in entries
    ]
    return {"dir": path, "writable": is_writable, "entries": shown}


@ROUTES.on("GET", "/files/read", is_tool=True)
async def read_file(
    call: TerminalRequest, path: Path, start_line: Annotated[Line, FIRST] = None, end_line: Annotated[Line, LAST] = None
) -> Any:
    """Read a text file, or some of its lines."""
    path = call.path(path)
    data = await _data(call, path)
    try:
        return {"path": path, **await aside(lines_of, data, start_line, end_line)}
    except UnicodeDecodeError:
        mime = mimetypes.guess_type(path)[0] or "application/octet-stream"
        if mime.startswith("image/"):
            return Response(data, media_type=mime)
        raise HTTPException(415, f"No text: {mime}, {len(data):,} bytes. Read it with run_python.") from None


@ROUTES.on("GET", "/files/display", is_tool=True)
async def display_file(call: TerminalRequest, path: Path) -> Any:
    """Show a file to the user, in the panel of files."""
    path, is_there = call.path(path), False
    with contextlib.suppress(HTTPException, OSError):
        is_there = not (await stat_of(call, path)).is_dir
    return {"path": path, "exists": is_there}


@ROUTES.on("GET", "/files/serve/{path:path}")
async def _serve(call: TerminalRequest, path: str) -> Any:
    return await _view(call, f"/{path}")


@ROUTES.on("GET", "/files/view")
async def _view(call: TerminalRequest, path: str) -> Any:
    path = resolved(path)
    size, pieces = await _contents(call, path)
    mime = mimetypes.guess_type(path)[0] or "application/octet-stream"
    return StreamingResponse(pieces, media_type=mime, headers={"Content-Length": str(size)})


@ROUTES.on("POST", "/files/write", is_tool=True)
async def write_file(
    call: TerminalRequest, path: Path, content: Annotated[str, Field(description="The whole text of the file.")]
) -> Any:
    """Write a text file and replace an existing one; missing folders are created."""
    path, data = call.path(path), content.encode("utf-8", "surrogatepass")
    await call.write(path, data)
    return {"path": path, "size": len(data)}


@ROUTES.on("POST", "/files/replace", is_tool=True)
async def replace_file_content(
    call: TerminalRequest,
    path: Path,
    replacements: Annotated[list[Replacement], at_most(100), Field(description="Replacements, in this order.")],
) -> Any:
    """Replace exact texts in a file."""
    path = call.path(path)
    try:
        text = (await _data(call, path)).decode()
    except UnicodeDecodeError:
        raise HTTPException(415, "The file is no text.") from None
    data = await aside(lambda: replaced_all(text, replacements).encode("utf-8", "surrogatepass"))
    await call.write(path, data)
    return {"path": path, "size": len(data)}


@ROUTES.on("POST", "/files/upload", query=("directory",))
async def _upload(call: TerminalRequest, directory: str = ".") -> Any:
    async with call.sent_form(1) as form:
        for file in uploaded(form):
            path = posixpath.join(resolved(directory), posixpath.basename(file.filename or "") or "upload")
            await call.write(path, file.file)
            return {"path": path, "size": file.size or 0}
    raise unusable({"type": "missing", "loc": ["body", "file"], "msg": "Field required"})


@ROUTES.on("POST", "/files/mkdir")
async def _mkdir(call: TerminalRequest, path: str) -> Any:
    path = resolved(path)
    await call.use(lambda sandbox: sandbox.make_dir(in_sandbox(path)))
    return {"path": path}


@ROUTES.on("DELETE", "/files/delete")
async def _delete(call: TerminalRequest, path: str) -> Any:
    path = resolved(path)
    check_spared(path)
    with not_found("Path not found"):
        is_folder = (await stat_of(call, path, follow=False)).is_dir
    await call.use(lambda sandbox: sandbox.remove(in_sandbox(path), recursive=True))
    return {"path": path, "type": "directory" if is_folder else "file"}


@ROUTES.on("POST", "/files/move")
async def _move(call: TerminalRequest, source: str, destination: str) -> Any:
    source, to = resolved(source), resolved(destination)
    check_spared(source)
    with not_found("Source path not found"):
        await stat_of(call, source, follow=False)

    def work(sandbox: Sandbox) -> None:
        above = in_sandbox(posixpath.dirname(to))
        if not (sandbox.exists(above) and sandbox.stat(above).is_dir):
            raise HTTPException(400, "Destination parent directory not found")
        if sandbox.exists(in_sandbox(to)):
            raise HTTPException(409, "Destination already exists")
        sandbox.move(in_sandbox(source), in_sandbox(to))

    await call.use(work)
    return {"source": source, "destination": to}


# -- parts --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def not_found(detail: str) -> Iterator[None]:
    """Answer 404 with this message for a path that does not exist."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise HTTPException(404, detail) from None


async def stat_of(call: TerminalRequest, path: str, *, follow: bool = True) -> FileInfo:
    """Return a file or folder; with `follow`, the target of a link. Errors as for `TerminalRequest.query_files`."""
    return await call.query_files(
        path, lambda sandbox: sandbox.stat(in_sandbox(path), follow=follow), call.wire.contents.stat
    )


async def _contents(call: TerminalRequest, path: str) -> tuple[int, AsyncGenerator[bytes, None]]:
    """Return the size of a file, and its bytes in pieces, never more than its size.

    Raises:
        FileNotFoundError: there is no such file.
    """
    info = await stat_of(call, path)
    if info.kind != "file":
        raise FileNotFoundError

    async def read(offset: int, most: int) -> bytes:
        def on_host(id_: str, name: str) -> bytes | None:
            with call.wire.contents.opened(id_, name) as file:
                return os.pread(file.fileno(), most, offset) if file else None

        return await call.query_files(
            path, lambda sandbox: sandbox.read_file(in_sandbox(path), offset=offset, max_bytes=most), on_host
        )

    return info.size, in_pieces(info.size, read)


async def _data(call: TerminalRequest, path: str) -> bytes:
    """Return the bytes of a file that is read as text.

    Raises:
        HTTPException: 413, it is too large.
        FileNotFoundError: there is no such file.
    """
    size, pieces = await _contents(call, path)
    if size > MAX_TEXT:
        raise HTTPException(
            413, f"The file has {size:,} bytes, more than {MAX_TEXT:,}: read or change it in parts, with run_python."
        )
    return b"".join([piece async for piece in pieces])


def lines_of(data: bytes, first: int | None, last: int | None) -> dict[str, Any]:
    """Return some lines of a text file, and the number of all.

    Raises:
        UnicodeDecodeError: it is no text.
    """
    text = data.decode()
    content = text[line_at(text, first or 1) : line_at(text, last + 1) if last else None]
    return {"content": as_read(content), "total_lines": text.count("\n") + (text[-1:] not in ("", "\n"))}


def as_read(text: str) -> str:
    """Return a text as models read and write it: with LF for all line ends."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def replaced_all(text: str, replacements: list[Replacement]) -> str:
    """Return a text with replacements made, each within its lines. All other lines keep their ends.

    Targets are compared with what `read_file` returns. A line end in a replacement is written as that of the lines it
    goes to.

    Raises:
        HTTPException: 400, a target is not there, or several times; 413, the text would become too large.
    """
    for each in replacements:
        start = line_at(text, each.start_line or 1)
        end = line_at(text, each.end_line + 1) if each.end_line else len(text)
        part, target = text[start:end], as_read(each.target)
        shown = as_read(part)
        count = shown.count(target)
        if not count:
            raise HTTPException(400, f"Target string not found: {each.target[:100]!r}")
        if count > 1 and not each.allow_multiple:
            raise HTTPException(400, f"Found {count} occurrences of target string but allow_multiple is false")
        if len(text) + count * (len(each.replacement) - len(each.target)) > MAX_TEXT:
            raise HTTPException(
                413, f"The file would have more than {MAX_TEXT:,} characters: change it with run_python."
            )
        text = text[:start] + _replaced(part, shown, target, each.replacement) + text[end:]
    return text


def _replaced(part: str, shown: str, target: str, replacement: str) -> str:
    """Return a part of a text, which `read_file` shows as `shown`, with all places of the target replaced."""
    returns, feeds, both = map(part.count, ("\r", "\n", "\r\n"))
    if not returns:
        return part.replace(target, replacement)
    if not feeds or returns == feeds == both:
        return shown.replace(target, as_read(replacement)).replace("\n", "\r\n" if feeds else "\r")
    pieces, place = list[str](), 0
    longer = array("Q", (found.start() - number for number, found in enumerate(_CRLF.finditer(part))))
    for found in re.finditer(re.escape(target), shown):
        start, after = (at + bisect_left(longer, at) for at in found.span())  # each CRLF is one character longer
        line_end = _LINE_END.search(part, start) or _LINE_END.search(part)
        pieces += [part[place:start], as_read(replacement).replace("\n", line_end[0] if line_end else "\n")]
        place = after
    return "".join(pieces) + part[place:]


def line_at(text: str, number: int) -> int:
    """Return where a line begins, counted from 1; the text's length if it has fewer lines. Makes no list of lines."""
    place, left = 0, number - 1
    while left > 0 and place < len(text):
        if (count := text.count("\n", place, place + BLOCK)) < left:
            place, left = place + BLOCK, left - count
        else:
            for _ in range(left):
                place = text.index("\n", place) + 1
            left = 0
    return min(place, len(text))
