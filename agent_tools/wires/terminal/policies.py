"""Policies of containers, set by the holder of a key for users, who asks for no user."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from agent_tools.bodies.json_body import at_most, json_of
from agent_tools.containers.config import MEMORY_TIERS
from agent_tools.containers.failures import MemoryRefused
from agent_tools.containers.records import WireValue
from agent_tools.containers.spec import check_memory
from agent_tools.errors import InvalidParams
from agent_tools.limits import KIB, size_of
from agent_tools.wires.routing import Routes, aside, digest
from agent_tools.wires.terminal.state import TerminalRequest, TerminalWire

MAX_POLICIES = 1_000  # of one key


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
    return {"policies": await aside(_count, admin)}


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
        if _count(admin) >= MAX_POLICIES:
            raise HTTPException(409, f"There are {MAX_POLICIES:,} policies.")
        rows.add(WireValue(id=id_, owner=admin.owner, created_at=time.time(), value=value))


def _count(admin: Admin) -> int:
    return sum("-" not in row.id for row in admin.wire.rows.find(WireValue, owner=admin.owner))  # others are E2B's


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
