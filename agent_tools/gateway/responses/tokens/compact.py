"""The route `/v1/responses/compact`: a conversation's summary, by its own model."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_tools.containers.ids import new_id
from agent_tools.gateway.http import Json, jobs_of, owner_of, raw_body, read_json, services_of
from agent_tools.gateway.jobs.sse import ended
from agent_tools.gateway.requests.failures import ApiError
from agent_tools.gateway.responses import request as asked
from agent_tools.gateway.responses.compaction.summary import ASKED, compaction_item
from agent_tools.gateway.responses.running import Submission, start_job
from agent_tools.gateway.responses.tools import Tools
from agent_tools.models.base import JsonObject

_QUESTION: JsonObject = {"type": "message", "role": "user", "content": ASKED}


async def compact(request: Request) -> Response:
    """POST /v1/responses/compact: nothing is stored, and no tool is called."""
    services, jobs = services_of(request), jobs_of(request)
    read = partial(_read, services.config.passed_fields)
    wanted = await read_json(request, await raw_body(request), read)
    job = await start_job(services, jobs, Submission(wanted, owner_of(request), request.headers, request.receive))
    if not await ended(job.log, request):
        jobs.abandon(job)
        return Response(status_code=499)
    if job.failure:
        raise job.failure
    return Json(await run_in_threadpool(_compacted, job.answer))


def _read(passed: tuple[str, ...], body: JsonObject) -> asked.Request:
    """Read the request as one for a response that sums up."""
    given = {name: value for name, value in body.items() if name not in ("tools", "tool_choice", "text", "stream")}
    given = {**given, "input": body.get("input") or [], "background": False, "store": False}
    wanted = asked.read_request(given, "ignore", passed)
    return replace(wanted, input=[*wanted.input, _QUESTION], tools=Tools(), conversation=None)


def _compacted(answer: str) -> JsonObject:
    """Return the compaction in a response's answer.

    Raises:
        ApiError: 502, the model wrote no summary.
    """
    body = json.loads(answer)
    messages = [item for item in body["output"] if item["type"] == "message"]
    summary = "".join(part.get("text", "") for item in messages for part in item["content"]).strip()
    if body["status"] != "completed" or not summary:
        raise ApiError(502, "The model wrote no summary, or not all of it.", code="no_summary")
    return {
        "id": new_id("resp"),
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [compaction_item(summary)],
        "usage": body["usage"],
    }


routes = [Route("/v1/responses/compact", compact, methods=["POST"])]
