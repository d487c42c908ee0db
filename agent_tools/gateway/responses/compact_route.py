"""The route `/v1/responses/compact`: a conversation's summary, by its own model."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from agent_tools.containers.ids import new_id
from agent_tools.gateway.http import JsonResponse, jobs_of, owner_of, raw_body, read_json, services_of
from agent_tools.gateway.requests.api_errors import no_summary
from agent_tools.gateway.responses.job import start_job
from agent_tools.gateway.responses.listed_items import listed_items
from agent_tools.gateway.responses.request import ResponseRequest, read_request
from agent_tools.gateway.responses.stored_items import said_before
from agent_tools.gateway.responses.summary_item import ASKED, compaction_item
from agent_tools.gateway.responses.tools import Tools
from agent_tools.gateway.services import Services
from agent_tools.gateway.sse import ended
from agent_tools.models.base import JsonObject

_QUESTION: JsonObject = {"type": "message", "role": "user", "content": ASKED}


async def compact(request: Request) -> Response:
    """POST /v1/responses/compact: nothing is stored, and no tool is called."""
    services, jobs = services_of(request), jobs_of(request)
    read = partial(_read_compaction, services.config.passed_fields)
    wanted = await read_json(await raw_body(request), read)
    job = await start_job(request, request.receive, wanted)
    if not await ended(job.log, request):
        jobs.abandon(job)
        return Response(status_code=499)
    if job.failure:
        raise job.failure
    return await run_in_threadpool(_compacted, services, owner_of(request), wanted, job.answer)


def _read_compaction(passed: tuple[str, ...], body: JsonObject) -> ResponseRequest:
    """Read the request as one for a response that sums up."""
    given = {name: value for name, value in body.items() if name not in ("tools", "tool_choice", "text", "stream")}
    given = {**given, "input": body.get("input") or [], "background": False, "store": False}
    wanted = read_request(given, "ignore", passed)
    return replace(wanted, input=[*wanted.input, _QUESTION], tools=Tools(), conversation=None, compacts=False)


def _compacted(services: Services, owner: str, wanted: ResponseRequest, answer: str) -> Response:
    """Answer the compaction in a response's answer, behind what the user said: the whole is the next input."""
    body = json.loads(answer)
    messages = [item for item in body["output"] if item["type"] == "message"]
    summary = "".join(part.get("text", "") for item in messages for part in item["content"]).strip()
    if body["status"] != "completed" or not summary:
        raise no_summary()
    most = services.config.max_conversation_bytes
    before = said_before(services.store, owner, wanted.previous_response_id, most)
    said = [item for item in listed_items(wanted.input[:-1]) if item.get("role") == "user"]
    compaction = {
        "id": new_id("resp"),
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [*before, *said, compaction_item(summary)],
        "usage": body["usage"],
    }
    return JsonResponse(compaction)
