"""The routes under `/v1/responses`."""

from __future__ import annotations

import json
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_tools.gateway import store as tables
from agent_tools.gateway.event_log import EventLog, encoded, unpacked_events
from agent_tools.gateway.failures import ApiError, invalid, not_found
from agent_tools.gateway.http import Json, json_body, owner_of, page, services_of
from agent_tools.gateway.responses.kept import forget
from agent_tools.gateway.responses.request import OUTPUTS, read_request
from agent_tools.gateway.responses.run import Run
from agent_tools.gateway.responses.runs import Runs
from agent_tools.gateway.sse import EventStream, ended
from agent_tools.gateway.store import Row
from agent_tools.gateway.under_way import UNDER_WAY


async def create_response(request: Request) -> Response:
    """POST /v1/responses."""
    wanted = read_request(await json_body(request))
    runs = runs_of(request)
    run = await runs.start(wanted, owner_of(request), request.headers)
    if wanted.stream:
        return _stream(request, run, 0)
    if wanted.background:
        return Json(run.last)
    if not await ended(run.log, request):
        runs.abandon(run)
        return Response(status_code=499)
    if run.failure:
        raise run.failure
    return Json(run.last)


async def retrieve_response(request: Request) -> Response:
    """GET /v1/responses/{id}; with `stream=true`, its events after `starting_after`."""
    row = await _row(request)
    run = runs_of(request).find(row["id"], row["owner"])
    if request.query_params.get("stream") == "true":
        start = _start(request)
        return _stream(request, run, start) if run else await _stream_again(request, row, start)
    return Json(_shown(row, run, request.query_params.getlist("include") + request.query_params.getlist("include[]")))


async def delete_response(request: Request) -> Response:
    """DELETE /v1/responses/{id}."""
    row = await _row(request)
    if run := runs_of(request).find(row["id"], row["owner"]):
        runs_of(request).abandon(run)
    await run_in_threadpool(forget, services_of(request).store, row)
    return Json({"id": row["id"], "object": "response.deleted", "deleted": True})


async def cancel_response(request: Request) -> Response:
    """POST /v1/responses/{id}/cancel."""
    row = await _row(request)
    if not json.loads(row["body"])["background"]:
        raise invalid("Cannot cancel a synchronous response.")
    run = runs_of(request).find(row["id"], row["owner"])
    if run is None and row["status"] in UNDER_WAY:
        raise _elsewhere()
    if run and not run.log.is_closed:
        runs_of(request).abandon(run)
        await ended(run.log, request)
    return Json(_shown(await _row(request), run, []))


async def list_input_items(request: Request) -> Response:
    """GET /v1/responses/{id}/input_items."""
    row = await _row(request)
    return page(request, json.loads(row["input"]), lambda item: item)


def runs_of(request: Request) -> Runs:
    """The responses under way."""
    runs: Runs = request.app.state.runs
    return runs


async def _row(request: Request) -> Row:
    id_, owner = request.path_params["response_id"], owner_of(request)
    row = await run_in_threadpool(services_of(request).store.get, tables.responses, id_, owner=owner)
    if row is None:
        raise not_found("response", id_)
    return await run_in_threadpool(services_of(request).under_way.settled, row)


def _shown(row: Row, run: Run | None, include: list[str]) -> dict[str, Any]:
    """The body as it stands."""
    body: dict[str, Any] = json.loads(row["body"])
    if row["status"] in UNDER_WAY:
        body["status"] = "queued" if run and run.body["status"] == "queued" else "in_progress"
    if include and OUTPUTS not in include:
        body["output"] = [{**item, "outputs": None} if "outputs" in item else item for item in body["output"]]
    return body


async def _stream_again(request: Request, row: Row, start: int) -> EventStream:
    """The events that were kept; of a response whose gateway was lost, only its end is known."""
    body = json.loads(row["body"])
    if row["status"] in UNDER_WAY:
        raise _elsewhere()
    if not body["background"]:
        raise invalid("Only a response with 'background' can be streamed again; ask for it without 'stream'.", "stream")
    kept = await run_in_threadpool(services_of(request).store.get, tables.events, row["id"])
    if kept:
        log = EventLog.of(unpacked_events(kept["data"]))
        return EventStream(log, lambda: None, start=start)
    kind = "incomplete" if row["status"] == "cancelled" else row["status"]
    end = {"type": f"response.{kind}", "response": body, "sequence_number": start}
    return EventStream(EventLog.of([encoded(end)]), lambda: None)


def _elsewhere() -> ApiError:
    return ApiError(409, "The response is under way in another gateway; poll it, or ask that one.", code="under_way")


def _stream(request: Request, run: Run, start: int) -> EventStream:
    runs, is_kept = runs_of(request), run.plan.request.background
    heartbeat = services_of(request).config.heartbeat
    return EventStream(run.log, lambda: None if is_kept else runs.abandon(run), start=start, heartbeat=heartbeat)


def _start(request: Request) -> int:
    after = request.query_params.get("starting_after", "-1")
    if not after.removeprefix("-").isdecimal():
        raise invalid("'starting_after' is a sequence number.", "starting_after", "invalid_type")
    return max(0, int(after) + 1)


routes = [
    Route("/v1/responses", create_response, methods=["POST"]),
    Route("/v1/responses/{response_id}", retrieve_response, methods=["GET"]),
    Route("/v1/responses/{response_id}", delete_response, methods=["DELETE"]),
    Route("/v1/responses/{response_id}/cancel", cancel_response, methods=["POST"]),
    Route("/v1/responses/{response_id}/input_items", list_input_items, methods=["GET"]),
]
