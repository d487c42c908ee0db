"""The routes for searches and archives: a Python program in the sandbox does the work."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from agent_tools.bodies.json_body import BodyRefused, at_most, parsed
from agent_tools.limits import MIB
from agent_tools.machine.folder import safe_name
from agent_tools.results.commands import Cursor
from agent_tools.sandbox.async_sandbox import AsyncProcess
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.open_resources import AHEAD, OpenResource, followed, program
from agent_tools.wires.routing import aside
from agent_tools.wires.terminal.files import not_found, stat_of
from agent_tools.wires.terminal.state import HOME, ROUTES, TerminalRequest, in_sandbox

SECONDS = 30.0
MAX_ANSWER = 16 * MIB
ARCHIVE_SECONDS = 280.0  # Open WebUI gives a request 300
_SOURCE = Path(__file__).parent / "guest" / "search.py"
Folder = Annotated[str, Field(description="The folder to look in.")]
Kind = Literal["any", "file", "directory"]
Few = Annotated[int, Field(ge=1, le=500)]
Patterns = Annotated[list[str] | None, at_most(100)]
NO_MATCHES = {"path": HOME, "matches": [], "truncated": False}


@ROUTES.on("GET", "/files/grep", is_tool=True)
async def grep_search(
    call: TerminalRequest,
    query: Annotated[str, Field(max_length=10_000, description="A regular expression of Python, or a text.")],
    path: Folder = ".",
    regex: Annotated[bool, Field(description="The query is a regular expression.")] = True,
    case_insensitive: bool = False,
    include: Annotated[Patterns, Field(description="Patterns of file names, such as *.py.")] = None,
    match_per_line: Annotated[bool, Field(description="Return each line; otherwise only the files.")] = True,
    max_results: Few = 50,
) -> Any:
    """Search the lines of files."""
    given: dict[str, Any] = {"query": query, "regex": regex, "case_insensitive": case_insensitive, "include": include}
    given |= {"match_per_line": match_per_line, "max_results": max_results}
    return {"query": query, **await _searched(call, "grep", path, NO_MATCHES, given)}


@ROUTES.on("GET", "/files/glob", is_tool=True)
async def glob_search(
    call: TerminalRequest,
    pattern: Annotated[str, Field(max_length=1_000, description="A pattern, such as *.csv or data/*.json.")],
    path: Folder = ".",
    exclude: Annotated[Patterns, Field(description="Patterns of what is left out.")] = None,
    type: Kind = "any",  # noqa: A002
    max_results: Few = 50,
) -> Any:
    """Find files and folders by a pattern of names."""
    given = {"pattern": pattern, "exclude": exclude, "only": type, "max_results": max_results}
    return {"pattern": pattern, **await _searched(call, "glob", path, NO_MATCHES, given)}


@ROUTES.on("GET", "/files/search")
async def _search(
    call: TerminalRequest,
    query: Annotated[str, Field(max_length=1_000)] = "",
    path: str = ".",
    limit: Annotated[int, Field(ge=1, le=100)] = 20,
    type: Kind = "any",  # noqa: A002
    show_hidden: bool = False,
) -> Any:
    given = {"query": query, "limit": limit, "only": type, "show_hidden": show_hidden}
    return await _searched(call, "search", path, {"results": []}, given)


@ROUTES.on("GET", "/files/matches")
async def _matches(
    call: TerminalRequest,
    query: Annotated[str, Field(max_length=1_000)],
    path: str = ".",
    show_hidden: bool = False,
    offset: Annotated[int, Field(ge=0, le=2**31)] = 0,
) -> Any:
    if not query.strip():
        raise HTTPException(400, "Query must not be blank")
    given = {"query": query, "show_hidden": show_hidden, "offset": offset}
    return await _searched(call, "matches", path, {"results": [], "next_offset": None}, given)


@ROUTES.on("POST", "/files/compare")
async def _compare(call: TerminalRequest, original: str, revised: str, ignore_whitespace: bool = False) -> Any:
    paths = [call.path(path) for path in (original, revised)]
    for path in paths:
        with not_found(f"{posixpath.basename(path)}: File not found."):
            await stat_of(call, path)
    given = {"paths": [in_sandbox(path) for path in paths], "shown": paths, "ignore_whitespace": ignore_whitespace}
    return await call.use(partial(_answer, "compare", given))


@ROUTES.on("POST", "/files/archive")
async def _archive(call: TerminalRequest, paths: Annotated[list[str], at_most(1_000)]) -> Any:
    """Send a zip, piece by piece as it is made."""
    found = [call.path(path) for path in paths]
    if not found:
        raise HTTPException(400, "No paths provided")
    for path in found:
        await stat_of(call, path, follow=False)
    options = program(_SOURCE, {"do": "archive", "paths": [in_sandbox(path) for path in found]})
    options |= {"timeout": ARCHIVE_SECONDS, "max_output": MIB}
    run = await call.wire.archives.start(call.place, call.ensure, None, AHEAD, **options)
    name = safe_name(posixpath.basename(found[0]) or "archive") if len(found) == 1 else "download"
    headers = {"Content-Disposition": f'attachment; filename="{name.encode("ascii", "replace").decode()}.zip"'}
    return StreamingResponse(_zip(call, run), media_type="application/zip", headers=headers)


async def _zip(call: TerminalRequest, run: OpenResource[AsyncProcess]) -> AsyncGenerator[bytes, None]:
    """Yield what a command prints. It waits for its reader, and ends with it.

    Raises:
        OSError: it failed. The answer, which has begun, is cut off, so that it does not look complete.
    """
    try:
        async with aclosing(followed(run.it, Cursor())) as outputs:
            async for new in outputs:
                yield new.stdout
        if not run.it.sync.result().ok:
            raise OSError("The archive was not finished.")
    finally:
        await call.wire.archives.end(run)


def _answer(do: str, given: dict[str, Any], sandbox: Sandbox) -> dict[str, Any]:
    """Return the program's answer.

    Raises:
        HTTPException: 504, it timed out; or the program's own status.
    """
    ran = sandbox.run_command(**program(_SOURCE, {"do": do, **given}), timeout=SECONDS, max_output=MAX_ANSWER)
    if ran.timed_out:
        raise HTTPException(504, f"The search took more than {SECONDS:g} seconds: give a smaller folder.")
    return answer_of(ran.stdout)


def answer_of(output: bytes) -> dict[str, Any]:
    """Return the answer in the output of the program, which code in the sandbox may have replaced.

    Raises:
        HTTPException: 500, it is none; or the program's own status.
    """
    with suppress(BodyRefused):
        match parsed(output):
            case {"error": [int(status), str(message)]}:
                raise HTTPException(status if status in (400, 403, 404) else 400, message[:500])
            case dict(found) if found and "error" not in found:
                return found
    raise HTTPException(500, "The sandbox's python3 did not answer.")


async def _searched(
    call: TerminalRequest, do: str, path: str, nothing: dict[str, Any], given: dict[str, Any]
) -> dict[str, Any]:
    """Search a folder; where the caller has no container, HOME is empty and there is no other folder."""
    full = call.path(path)
    if await aside(call.find) is None:
        if full != HOME:
            raise HTTPException(404, "Search directory not found")
        return nothing
    return await call.use(partial(_answer, do, {**given, "path": in_sandbox(full), "shown": full}))
