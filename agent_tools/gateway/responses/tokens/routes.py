"""The route `/v1/responses/input_tokens`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_tools.gateway.http import Json, owner_of, raw_body, read_json, services_of
from agent_tools.gateway.remote_mcp.reach import Reach
from agent_tools.gateway.responses import request as asked
from agent_tools.gateway.responses.compaction.count import MAX_ANSWER, estimate, read_count
from agent_tools.gateway.responses.plan import Planner
from agent_tools.gateway.responses.shell.local_shell import local_shell
from agent_tools.gateway.responses.tools import CODE, SHELL, Tools, Unknown
from agent_tools.gateway.services import Services
from agent_tools.gateway.tools.hold import Hold
from agent_tools.gateway.tools.shell import ContainerShell
from agent_tools.gateway.tools.tool import ContainerTool
from agent_tools.models.base import JsonObject


async def count_input_tokens(request: Request) -> Response:
    """POST /v1/responses/input_tokens: nothing is stored, and no container is made.

    The tools of MCP servers, which are not asked, are not counted.

    `source` of the answer tells who counted: `upstream`, or `estimate` if the upstream has no /tokenize.
    """
    services = services_of(request)
    read = partial(_read, services.config.unknown_tools, services.mcp_reach)
    wanted = await read_json(request, await raw_body(request), read)
    bare = replace(wanted, store=False, background=False, tools=Tools())  # no container is found or made
    planner = Planner(services, owner_of(request), bare)
    plan = await run_in_threadpool(planner.plan, services.upstream.key(request.headers))
    messages = [*plan.instructions, *plan.conversation]
    tools: list[JsonObject] = [{"type": "function", "function": each} for each in _definitions(services, wanted.tools)]
    sent = {"model": wanted.model, "messages": messages, "tools": tools or None, "add_generation_prompt": True}
    answer = await services.upstream.ask("tokenize", request.headers, sent, MAX_ANSWER)
    count = await run_in_threadpool(read_count, answer) if answer else None
    source = "estimate" if count is None else "upstream"
    if count is None:
        count = await run_in_threadpool(estimate, messages, tools)
    return Json({"object": "response.input_tokens", "input_tokens": count, "source": source})


def _definitions(services: Services, tools: Tools) -> Iterator[JsonObject]:
    """Yield all that the model is offered."""
    hold = Hold(services.containers, "")
    if CODE in tools.built_in:
        yield dict(ContainerTool(hold).definition)
    if SHELL in tools.built_in:
        is_local = tools.has_local_shell
        yield dict(local_shell(services.config.shell_name) if is_local else ContainerShell(hold).definition)
    for tool in tools.clients:
        yield dict(tool.offered)


def _read(unknown_tools: Unknown, reach: Reach | None, body: JsonObject) -> asked.Request:
    return asked.read_request({**body, "input": body.get("input") or []}, unknown_tools, reach=reach)


routes = [
    Route("/v1/responses/input_tokens", count_input_tokens, methods=["POST"]),
]
