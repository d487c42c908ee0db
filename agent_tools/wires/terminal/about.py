"""What the server is: its features, its prompt, its tools, and policies of containers as an orchestrator has them."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agent_tools.containers.config import MEMORY_TIERS
from agent_tools.containers.failures import MemoryRefused
from agent_tools.containers.spec import check_memory, contents
from agent_tools.errors import InvalidParams
from agent_tools.limits import size_of
from agent_tools.wires.terminal import requests as asked
from agent_tools.wires.terminal.callers import HOME, caller_of
from agent_tools.wires.terminal.requests import Json, body_of
from agent_tools.wires.terminal.rooms import Rooms, aside, rooms_of
from agent_tools.wires.terminal.tools import document

MAX_POLICIES = 1_000  # of one key
SEALED = "This terminal is sealed: a server in it cannot be reached from outside."
_PROMPT = (
    "You have a sealed Linux container of this chat's own, without a network and without root. {contents} "
    f"Its working directory is {HOME}: only files there are kept, and the user sees them. Use run_python for Python: "
    "variables, imports and open objects stay from call to call, and figures are shown to you. Use run_command for "
    "everything else. When the container makes room for others, its variables are saved, its programs end; files in "
    f"{HOME} are deleted once the chat was not used for {{days:g}} days. Nothing can be installed or downloaded. Call "
    "display_file to show the user a file."
)


async def health(_: Request) -> Response:
    """GET /health."""
    return Json({"status": "ok"})


async def config(_: Request) -> Response:
    """GET /api/config: asked for without a key by a browser, and with one by an admin who checks it."""
    return Json({"features": {"terminal": True, "notebooks": True, "system": True}})


async def system(request: Request) -> Response:
    """GET /system: the part of the prompt that tells of the container. It must answer in milliseconds."""
    caller_of(request)
    settings = rooms_of(request).containers.config
    days = settings.user_container_idle / 86_400
    return Json({"prompt": _PROMPT.format(contents=contents(settings), days=days)})


async def openapi(request: Request) -> Response:
    """GET /openapi.json."""
    caller_of(request)
    return Json(document())


async def ports(request: Request) -> Response:
    """GET /ports: asked for every five seconds while a panel is open."""
    caller_of(request)
    return Json({"ports": []})


async def proxy(request: Request) -> Response:
    """Any method, /proxy/PORT/PATH."""
    caller_of(request)
    raise HTTPException(501, SEALED)


async def skills(request: Request) -> Response:
    """GET /skills: there are none."""
    caller_of(request)
    return Json([])


async def skill(request: Request) -> Response:
    """GET /skills/read."""
    caller_of(request)
    raise HTTPException(404, "Skill not found")


async def policies(request: Request) -> Response:
    """GET /api/v1/policies: what answers here is an orchestrator to Open WebUI."""
    return Json({"policies": await aside(rooms_of(request).policies, _admin(request))})


async def policy(request: Request) -> Response:
    """GET and PUT /api/v1/policies/NAME."""
    owner, name, rooms = _admin(request), request.path_params["name"][:200], rooms_of(request)
    known = await aside(rooms.policy, owner, name)
    if request.method == "GET":
        if not known:
            raise HTTPException(404, "Policy not found")
        return Json({"id": name, "data": known.get("shown", {})})
    given = await body_of(request, asked.PolicyBody)
    data = {"memory_tier": _tier(rooms, given.memory_limit)}
    if given.image or given.env:
        raise HTTPException(422, "The operator of this server decides on image and env: leave them empty.")
    if not known and await aside(rooms.policies, owner) >= MAX_POLICIES:
        raise HTTPException(409, f"There are {MAX_POLICIES:,} policies.")
    shown = given.model_dump(exclude_none=True)
    await aside(rooms.put_policy, owner, name, {"data": data, "shown": shown})
    return Json({"id": name, "data": shown})


async def lifecycle(request: Request) -> Response:
    """GET and PUT /api/v1/policies/NAME/lifecycle: there is nothing to set."""
    _admin(request)
    if request.method == "PUT":
        body = await request.body()
        if body.strip() not in (b"", b"{}", b"null"):
            raise HTTPException(422, "This server has no lifecycle to set: leave it empty.")
    return Json({"id": request.path_params["name"], "data": {}})


async def refresh(request: Request) -> Response:
    """POST /api/v1/terminals/refresh: containers follow their settings at their next start."""
    _admin(request)
    return Json({"refreshed": 0})


def _admin(request: Request) -> str:
    """Return the owner of policies: the holder of a key for users, who asks for no user.

    Raises:
        HTTPException: 403.
    """
    caller = caller_of(request)
    if not request.scope["for_users"] or "x-user-id" in request.headers:
        raise HTTPException(403, "Policies are for the holder of a key made with --for-users, and for no user.")
    return caller.owner


def _tier(rooms: Rooms, memory: str) -> str | None:
    """Return the memory tier that is large enough for a limit such as 1Gi, None for the usual one.

    Raises:
        HTTPException: 422, there is none.
    """
    if not memory:
        return None
    config: Any = rooms.containers.config
    try:
        size: Any = size_of(memory.removesuffix("i"))
        return check_memory(next((name for name, most in MEMORY_TIERS.items() if most >= size), "unknown"), config)
    except (MemoryRefused, InvalidParams, TypeError):
        most = config.max_memory
        raise HTTPException(422, f"memory_limit {memory!r:.40} is not available here: at most {most}.") from None
