"""The routes about the server itself: its features, prompt, tools, and policies of containers."""

from __future__ import annotations

import json
import time
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request

from agent_tools.bodies.json_body import at_most, json_of
from agent_tools.containers.config import MEMORY_TIERS
from agent_tools.containers.failures import MemoryRefused
from agent_tools.containers.records import WireValue
from agent_tools.containers.sentences import contents
from agent_tools.containers.spec import check_memory
from agent_tools.errors import InvalidParams
from agent_tools.limits import KIB, size_of
from agent_tools.skills.skill import MANIFEST, MAX_DESCRIPTION, Skill, with_catalogue
from agent_tools.wires.routing import Json, Operation, Routes, aside, digest
from agent_tools.wires.terminal.state import HOME, ROUTES, TerminalRequest, TerminalWire

MAX_SKILL_FILES = 50  # that are named with a skill
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


async def features(_: Request) -> Json:
    """Answer GET /api/config: browsers ask without a key, admins with one to check it."""
    return Json({"features": {"terminal": True, "notebooks": True, "system": True}})


@ROUTES.on("GET", "/system")
async def _system(call: TerminalRequest) -> Any:  # requested at every message, so it is answered from memory
    config = call.wire.containers.config
    prompt = _PROMPT.format(contents=contents(config), days=config.user_container_idle / 86_400)
    return {"prompt": with_catalogue(prompt, config.known_skills)}


@ROUTES.on("GET", "/openapi.json")
async def _openapi(_: TerminalRequest) -> Any:
    return _document()


@ROUTES.on("GET", "/ports")
async def _ports(_: TerminalRequest) -> Any:
    return {"ports": []}


@ROUTES.on("GET", "/skills")
async def _skills(call: TerminalRequest) -> Any:
    return [_skill_shown(each) for each in call.wire.containers.config.known_skills]


@ROUTES.on("GET", "/skills/read")
async def _skill(call: TerminalRequest, name: str) -> Any:
    for skill in call.wire.containers.config.known_skills:
        if skill.name == name:
            return await aside(_skill_read, skill)
    raise HTTPException(404, "Skill not found")


def _skill_shown(skill: Skill) -> dict[str, Any]:
    about = {"description": skill.description[:MAX_DESCRIPTION], "location": f"{skill.path}/{MANIFEST}"}
    return {"id": f"terminal:{skill.name}", "name": skill.name, **about, "scope": "global", "source": "terminal"}


def _skill_read(skill: Skill) -> dict[str, Any]:
    """Return a skill with the text below its frontmatter, and the paths of its first files."""
    text = (skill.folder / MANIFEST).read_text("utf-8", "replace").partition("\n---")[2].partition("\n")[2]
    resources = [path for path in skill.files() if path != MANIFEST][:MAX_SKILL_FILES]
    return {**_skill_shown(skill), "content": text.strip(), "resources": resources}


async def _proxy(_: TerminalRequest) -> Any:
    raise HTTPException(501, SEALED)


for _method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
    ROUTES.on(_method, "/proxy/{rest:path}")(_proxy)


# -- policies: of the holder of a key for users, who asks for no user -------------------------------------------------


class Admin(TerminalRequest):
    """A request about policies.

    Raises:
        HTTPException: 403, it is another caller's.
    """

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        if not request.scope["for_users"] or "x-user-id" in request.headers:
            raise HTTPException(403, "Policies need a key made with --for-users and no user in the request.")


POLICIES = Routes(Admin)


@POLICIES.on("GET", "/api/v1/policies")
async def _policies(admin: Admin) -> Any:  # an answer tells Open WebUI that this is an orchestrator
    return {"policies": await aside(lambda: admin.wire.rows.count(WireValue, owner=admin.owner))}


@POLICIES.on("GET", "/api/v1/policies/{name}")
async def _policy(admin: Admin, name: str) -> Any:
    if known := await aside(admin.wire.policy, admin.owner, name):
        return {"id": name, "data": known["shown"]}
    raise HTTPException(404, "Policy not found")


@POLICIES.on("PUT", "/api/v1/policies/{name}")
async def _put_policy(
    admin: Admin,
    name: str,
    image: str = "",
    env: Annotated[dict[str, str] | None, at_most(1_000)] = None,
    cpu_limit: str = "",
    memory_limit: str = "",
    storage: str | dict[str, Any] | None = None,
    idle_timeout_minutes: float | None = None,
) -> Any:
    if image or env:
        raise HTTPException(422, "The operator of this server decides on image and env: leave them empty.")
    shown: dict[str, Any] = {"cpu_limit": cpu_limit, "memory_limit": memory_limit, "storage": storage}
    shown["idle_timeout_minutes"] = idle_timeout_minutes
    value = {"tier": _tier(admin.wire, memory_limit), "shown": shown}
    await aside(_written, admin, digest("terminal", admin.owner, name), json.dumps(value))
    return {"id": name, "data": shown}


def _written(admin: Admin, id_: str, value: str) -> None:
    rows = admin.wire.rows
    if not rows.change(WireValue, id_, value=value):
        if rows.count(WireValue, owner=admin.owner) >= MAX_POLICIES:
            raise HTTPException(409, f"There are {MAX_POLICIES:,} policies.")
        rows.add(WireValue(id=id_, owner=admin.owner, created_at=time.time(), value=value))


@POLICIES.on("GET", "/api/v1/policies/{name}/lifecycle")
@POLICIES.on("PUT", "/api/v1/policies/{name}/lifecycle")
async def _lifecycle(admin: Admin, name: str) -> Any:
    if await json_of(admin.request, KIB, bool):
        raise HTTPException(422, "This server has no lifecycle settings: leave it empty.")
    return {"id": name, "data": {}}


@POLICIES.on("POST", "/api/v1/terminals/refresh")
async def _refresh(_: Admin) -> Any:  # containers follow their policy when they are made
    return {"refreshed": 0}


def _tier(wire: TerminalWire, memory: str) -> str | None:
    """Return the memory tier that is large enough for a limit such as 1Gi, None for the usual one."""
    if not memory:
        return None
    config = wire.containers.config
    try:
        size: Any = size_of(memory.removesuffix("i"))
        return check_memory(next((name for name, most in MEMORY_TIERS.items() if most >= size), "unknown"), config)
    except (MemoryRefused, InvalidParams, TypeError):
        most = config.max_memory
        raise HTTPException(422, f"memory_limit {memory!r:.40} is not available here: at most {most}.") from None


# -- the tools of the model, as OpenAPI has them ----------------------------------------------------------------------


@cache
def _document() -> dict[str, Any]:
    """Return the OpenAPI document. Each parameter has a plain `type`: one without is shown to models as text."""
    paths: dict[str, dict[str, Any]] = {}
    for each in ROUTES.operations:
        if each.is_tool:
            paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
    return {"openapi": "3.1.0", "info": {"title": "agent_tools", "version": "1"}, "paths": paths}


def _operation(each: Operation) -> dict[str, Any]:
    query, body = _schema(each.query), _schema(each.body)
    required = query.get("required", ())
    parameters = [
        {"name": name, "in": "query", "required": name in required, "schema": part}
        for name, part in query["properties"].items()
    ]
    if "{process_id}" in each.path:
        part = {"type": "string", "description": "The id of the command."}
        parameters.append({"name": "process_id", "in": "path", "required": True, "schema": part})
    found: dict[str, Any] = {
        "operationId": each.name,
        "description": " ".join((each.handler.__doc__ or "").split()),
        "parameters": parameters,
        "responses": {"200": {"description": "Done."}},
    }
    if body["properties"]:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return found


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    return dict(_plain(schema, schema.get("$defs", {})))


def _plain(schema: Any, definitions: dict[str, Any]) -> Any:
    """Return a schema of pydantic's without references, titles, and alternatives to null."""
    if isinstance(schema, list):
        return [_plain(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _plain(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    parts = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    flat = {**(parts[0] if parts else {}), **schema}
    left_out = {"anyOf", "title", "$defs", *(["default"] if flat.get("default", 0) is None else [])}
    return {name: _plain(value, definitions) for name, value in flat.items() if name not in left_out}
