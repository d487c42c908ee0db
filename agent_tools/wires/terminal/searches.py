"""Searches in files: done in the sandbox, by a program of its Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agent_tools.limits import MIB
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.terminal import requests as asked
from agent_tools.wires.terminal.callers import HOME, caller_of, in_sandbox, resolved
from agent_tools.wires.terminal.requests import Json, body_of, query_of
from agent_tools.wires.terminal.rooms import aside, rooms_of

SECONDS = 30.0
MAX_ANSWER = 16 * MIB
_SOURCE = Path(__file__).parent / "guest" / "search.py"


async def grep(request: Request) -> Response:
    """GET /files/grep."""
    given = query_of(request, asked.GrepQuery)
    return await _searched(request, "grep", given, {"query": given.query, "matches": [], "truncated": False})


async def glob(request: Request) -> Response:
    """GET /files/glob."""
    given = query_of(request, asked.GlobQuery)
    return await _searched(request, "glob", given, {"pattern": given.pattern, "matches": [], "truncated": False})


async def search(request: Request) -> Response:
    """GET /files/search."""
    return await _searched(request, "search", query_of(request, asked.SearchQuery), {"results": []})


async def matches(request: Request) -> Response:
    """GET /files/matches."""
    given = query_of(request, asked.MatchesQuery)
    if not given.query.strip():
        raise HTTPException(400, "Query must not be blank")
    return await _searched(request, "matches", given, {"results": [], "next_offset": None})


async def compare(request: Request) -> Response:
    """POST /files/compare."""
    given, rooms, caller = await body_of(request, asked.CompareBody), rooms_of(request), caller_of(request)
    paths = {name: resolved(getattr(given, name), rooms.cwd(caller)) for name in ("original", "revised")}
    if await aside(rooms.find, caller) is None:
        raise HTTPException(404, f"File not found: {paths['original'][:200]}")
    inner = {name: in_sandbox(path) for name, path in paths.items()}
    found = await rooms.use(
        caller, lambda sandbox: answer(sandbox, "compare", **inner, ignore_whitespace=given.ignore_whitespace)
    )
    return Json({**found, **{name: {**found[name], "path": path} for name, path in paths.items()}})


def command(do: str, **given: Any) -> list[str]:
    """Return the command that does one of the program's functions; paths are as the sandbox takes them."""
    return ["python3", "-I", "-c", _SOURCE.read_text(), json.dumps({"do": do, **given})]


def answer(sandbox: Sandbox, do: str, **given: Any) -> dict[str, Any]:
    """Return what the program answers.

    Raises:
        HTTPException: 504, it took too long; or as the program says.
    """
    ran = sandbox.run_command(command(do, **given), timeout=SECONDS, max_output=MAX_ANSWER)
    if ran.timed_out:
        raise HTTPException(504, f"The search took more than {SECONDS:g} seconds: give a smaller folder.")
    try:
        found = json.loads(ran.stdout)
        error = found.get("error")
    except (ValueError, RecursionError, AttributeError):
        raise HTTPException(500, "The sandbox's python3 did not answer.") from None
    if error:
        status = error[0] if error[0] in (400, 403, 404) else 400
        raise HTTPException(status, str(error[1])[:500])
    return dict(found)


async def _searched(request: Request, do: str, given: BaseModel, nothing: dict[str, Any]) -> Response:
    """Search a folder; where the caller has no container, HOME is empty and there is no other folder."""
    rooms, caller, fields = rooms_of(request), caller_of(request), given.model_dump()
    path = resolved(fields["path"], rooms.cwd(caller))
    if await aside(rooms.find, caller) is None:
        if path != HOME:
            raise HTTPException(404, "Search directory not found")
        return Json({**nothing, "path": path})
    fields["path"] = in_sandbox(path)
    if "type" in fields:
        fields["only"] = fields.pop("type")
    if do != "glob":  # whose paths are relative
        fields["shown"] = path
    found = await rooms.use(caller, lambda sandbox: answer(sandbox, do, **fields))
    return Json({**nothing, **found, "path": path} if do in ("grep", "glob") else {**nothing, **found})
