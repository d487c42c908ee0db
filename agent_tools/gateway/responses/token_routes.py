"""The route `/v1/responses/input_tokens`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_tools.containers.records import new_id
from agent_tools.gateway.http import JsonResponse, jobs_of, owner_of, raw_body, read_json, services_of
from agent_tools.gateway.remote_mcp.allowed_servers import AllowedServers
from agent_tools.gateway.requests.failures import ApiError
from agent_tools.gateway.responses.compaction import ASKED, MAX_ANSWER, compaction_item, estimate, read_count
from agent_tools.gateway.responses.job import Submission, start_job
from agent_tools.gateway.responses.plan import Chosen, client_functions, find, hosted_tools, plan
from agent_tools.gateway.responses.request import ResponseRequest, read_request
from agent_tools.gateway.responses.stored_items import listed_items
from agent_tools.gateway.responses.tools import Tools, Unknown
from agent_tools.gateway.services import Services
from agent_tools.gateway.sse import ended
from agent_tools.gateway.tools.tool import ContainerLease
from agent_tools.models.base import JsonObject


async def count_input_tokens(request: Request) -> Response:
    """POST /v1/responses/input_tokens: nothing is stored, and no container is made.

    The tools of MCP servers, which are not asked, are not counted.

    `source` of the answer tells who counted: `upstream`, or `estimate` if the upstream has no /tokenize.
    """
    services = services_of(request)
    read = partial(_read, services.config.unknown_tools, services.mcp_servers)
    wanted = await read_json(request, await raw_body(request), read)
    owner, key = owner_of(request), services.upstream.key(request.headers)
    messages, tools = await run_in_threadpool(_sent, services, owner, wanted, key)
    sent = {"model": wanted.model, "messages": messages, "tools": tools or None, "add_generation_prompt": True}
    answer = await services.upstream.ask("tokenize", request.headers, sent, MAX_ANSWER)
    count = await run_in_threadpool(read_count, answer) if answer else None
    source = "estimate" if count is None else "upstream"
    if count is None:
        count = await run_in_threadpool(estimate, messages, tools)
    return JsonResponse({"object": "response.input_tokens", "input_tokens": count, "source": source})


def _sent(
    services: Services, owner: str, wanted: ResponseRequest, upstream_key: str
) -> tuple[list[JsonObject], list[JsonObject]]:
    """Return the messages and the tools that the model would get; no container is found or made."""
    bare = replace(wanted, store=False, background=False, tools=Tools())
    planned = plan(services, find(services, owner, bare), Chosen(), upstream_key)
    hosted = [dict(tool.definition) for tool in hosted_tools(wanted.tools, ContainerLease(services.containers, ""))]
    offered = [*hosted, *map(dict, client_functions(services, wanted.tools))]
    tools: list[JsonObject] = [{"type": "function", "function": each} for each in offered]
    return [*planned.instructions, *planned.conversation], tools


def _read(unknown_tools: Unknown, servers: AllowedServers | None, body: JsonObject) -> ResponseRequest:
    return read_request({**body, "input": body.get("input") or []}, unknown_tools, servers=servers)


routes = [
    Route("/v1/responses/input_tokens", count_input_tokens, methods=["POST"]),
]


# The route `/v1/responses/compact`: a conversation's summary, by its own model.


_QUESTION: JsonObject = {"type": "message", "role": "user", "content": ASKED}


async def compact(request: Request) -> Response:
    """POST /v1/responses/compact: nothing is stored, and no tool is called."""
    services, jobs = services_of(request), jobs_of(request)
    read = partial(_read_compaction, services.config.passed_fields)
    wanted = await read_json(request, await raw_body(request), read)
    job = await start_job(services, jobs, Submission(wanted, owner_of(request), request.headers, request.receive))
    if not await ended(job.log, request):
        jobs.abandon(job)
        return Response(status_code=499)
    if job.failure:
        raise job.failure
    said = [item for item in listed_items(wanted.input[:-1]) if item.get("role") == "user"]
    return JsonResponse(await run_in_threadpool(_compacted, job.answer, said))


def _read_compaction(passed: tuple[str, ...], body: JsonObject) -> ResponseRequest:
    """Read the request as one for a response that sums up."""
    given = {name: value for name, value in body.items() if name not in ("tools", "tool_choice", "text", "stream")}
    given = {**given, "input": body.get("input") or [], "background": False, "store": False}
    wanted = read_request(given, "ignore", passed)
    return replace(wanted, input=[*wanted.input, _QUESTION], tools=Tools(), conversation=None)


def _compacted(answer: str, said: Sequence[JsonObject]) -> JsonObject:
    """Return the compaction in a response's answer, behind what the user said: the whole is the next input."""
    body = json.loads(answer)
    messages = [item for item in body["output"] if item["type"] == "message"]
    summary = "".join(part.get("text", "") for item in messages for part in item["content"]).strip()
    if body["status"] != "completed" or not summary:
        raise ApiError(502, "The model wrote no summary, or not all of it.", code="no_summary")
    return {
        "id": new_id("resp"),
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [*said, compaction_item(summary)],
        "usage": body["usage"],
    }


compact_routes = [Route("/v1/responses/compact", compact, methods=["POST"])]
