"""The route `/v1/responses/input_tokens`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from agent_tools.gateway.http import JsonResponse, jobs_of, owner_of, raw_body, read_json, services_of
from agent_tools.gateway.remote_mcp.allowed_servers import AllowedServers
from agent_tools.gateway.responses.plan import ChosenContainer, client_functions, find, hosted_tools, plan
from agent_tools.gateway.responses.request import ResponseRequest, read_request
from agent_tools.gateway.responses.token_count import count_tokens
from agent_tools.gateway.responses.tools import Tools, Unknown
from agent_tools.gateway.services import Services
from agent_tools.gateway.tools.lease import ContainerLease
from agent_tools.models.base import JsonObject


async def count_input_tokens(request: Request) -> Response:
    """POST /v1/responses/input_tokens: nothing is stored, and no container is made.

    The tools of MCP servers, which are not asked, are not counted.

    `source` of the answer tells who counted: `upstream`, or `estimate` if the upstream has no /tokenize.
    """
    services = services_of(request)
    read = partial(_read_counted, services.config.unknown_tools, services.mcp_servers)
    wanted = await read_json(await raw_body(request), read)
    owner, key, jobs = owner_of(request), services.upstream.key(request.headers), jobs_of(request)
    slot = await jobs.enter(owner, needs_sandbox=False)
    try:
        messages, tools = await run_in_threadpool(_sent, services, owner, wanted, key)
        count, source = await count_tokens(services.upstream, request.headers, wanted.model, messages, tools)
    finally:
        jobs.leave(slot)
    return JsonResponse({"object": "response.input_tokens", "input_tokens": count, "source": source})


def _sent(
    services: Services, owner: str, wanted: ResponseRequest, upstream_key: str
) -> tuple[list[JsonObject], list[JsonObject]]:
    """Return the messages and the tools that the model would get; no container is found or made."""
    bare = replace(wanted, store=False, background=False, tools=Tools())
    with services.compute.computing(is_urgent=True):
        planned = plan(services, find(services, owner, bare), ChosenContainer(), upstream_key)
    hosted = [dict(tool.definition) for tool in hosted_tools(wanted.tools, ContainerLease(services.containers, ""))]
    offered = [*hosted, *map(dict, client_functions(services, wanted.tools))]
    tools: list[JsonObject] = [{"type": "function", "function": each} for each in offered]
    return [*planned.instructions, *planned.conversation], tools


def _read_counted(unknown_tools: Unknown, servers: AllowedServers | None, body: JsonObject) -> ResponseRequest:
    return read_request({**body, "input": body.get("input") or []}, unknown_tools, servers=servers)
