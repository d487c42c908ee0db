"""The routes under `/v1/responses`."""

from __future__ import annotations

import json
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_tools.gateway import store as tables
from agent_tools.gateway.failures import invalid, not_found
from agent_tools.gateway.http import Json, json_body, owner_of, page, services_of
from agent_tools.gateway.responses.kept import forget
from agent_tools.gateway.responses.request import OUTPUTS, read_request
from agent_tools.gateway.responses.run import Run
from agent_tools.gateway.responses.runs import Runs
from agent_tools.gateway.sse import EventStream, ended
from agent_tools.gateway.store import Row

UNDER_WAY = ("queued", "in_progress")


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
        if run is None or not run.plan.request.background:
            raise invalid("The events of this response can no longer be streamed.", "stream")
        return _stream(request, run, _start(request))
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
    return row


def _shown(row: Row, run: Run | None, include: list[str]) -> dict[str, Any]:
    """The body as it stands; one that was under way when the gateway ended has failed."""
    body: dict[str, Any] = json.loads(row["body"])
    if row["status"] in UNDER_WAY:
        body["status"] = run.body["status"] if run and not run.log.is_closed else "failed"
        if body["status"] == "failed":
            body["error"] = {"code": "server_error", "message": "The gateway was stopped before the response's end."}
        elif body["status"] not in UNDER_WAY:
            body["status"] = "in_progress"  # it is just being kept
    if include and OUTPUTS not in include:
        body["output"] = [{**item, "outputs": None} if "outputs" in item else item for item in body["output"]]
    return body


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
