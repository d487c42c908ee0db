"""The routes under `/v1/responses`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_tools.gateway import store as tables
from agent_tools.gateway.background import UNDER_WAY
from agent_tools.gateway.http import (
    Json,
    JsonText,
    jobs_of,
    owner_of,
    page_of_texts,
    query_integer,
    raw_body,
    read_json,
    services_of,
)
from agent_tools.gateway.jobs.event_log import EventLog, Logged, unpacked_events
from agent_tools.gateway.jobs.sse import EventStream, ended
from agent_tools.gateway.requests.failures import ApiError, invalid, not_found
from agent_tools.gateway.responses.body import listed_rows
from agent_tools.gateway.responses.job import ResponseJob
from agent_tools.gateway.responses.request import OUTPUTS, read_request
from agent_tools.gateway.responses.running import Asked, find_job, start_job
from agent_tools.gateway.responses.stored_items import forget
from agent_tools.gateway.store import Row, Store

_SHORT = ("status", "background", "bytes")  # columns
_T = TypeVar("_T")


async def create_response(request: Request) -> Response:
    """POST /v1/responses."""
    wanted = await read_json(request, await raw_body(request), read_request)
    services, jobs = services_of(request), jobs_of(request)
    job = await start_job(services, jobs, Asked(wanted, owner_of(request), request.headers))
    if wanted.stream:
        return _stream(request, job, 0)
    if not wanted.background:
        if not await ended(job.log, request):
            jobs.abandon(job)
            return Response(status_code=499)
        if job.failure:
            raise job.failure
    return await services.large_json.read(len(job.answer), JsonText, job.answer)


async def retrieve_response(request: Request) -> Response:
    """GET /v1/responses/{id}; with `stream=true`, its events after `starting_after`."""
    row = await _row(request)
    job = find_job(jobs_of(request), row["id"], row["owner"])
    if request.query_params.get("stream") == "true":
        after = query_integer(request, "starting_after", -(2**53))
        start = 0 if after is None else max(0, after + 1)
        return _stream(request, job, start) if job else await _stream_again(request, row, start)
    include = request.query_params.getlist("include") + request.query_params.getlist("include[]")
    return await _read(request, row, lambda now: _shown(now, job, include))


async def delete_response(request: Request) -> Response:
    """DELETE /v1/responses/{id}."""
    row = await _row(request)
    if job := find_job(jobs_of(request), row["id"], row["owner"]):
        jobs_of(request).abandon(job)
    await run_in_threadpool(forget, services_of(request).store, row)
    return Json({"id": row["id"], "object": "response.deleted", "deleted": True})


async def cancel_response(request: Request) -> Response:
    """POST /v1/responses/{id}/cancel."""
    row = await _row(request)
    if not row["background"]:
        raise invalid("Cannot cancel a synchronous response.")
    job = find_job(jobs_of(request), row["id"], row["owner"])
    if job is None and row["status"] in UNDER_WAY:
        raise _elsewhere()
    if job and not job.log.is_closed:
        jobs_of(request).abandon(job)
        await ended(job.log, request)
    return await _read(request, await _row(request), lambda now: _shown(now, job, []))


async def list_input_items(request: Request) -> Response:
    """GET /v1/responses/{id}/input_items."""
    row = await _row(request)
    return await _read(request, row, lambda now: page_of_texts(request, listed_rows(now["input"])), "input")


async def _row(request: Request) -> Row:
    """What is short of a response's row, once it is known whether the response is over."""
    id_, owner, columns = request.path_params["response_id"], owner_of(request), ("id", "owner", *_SHORT)
    row = await run_in_threadpool(services_of(request).store.get, tables.responses, id_, *columns, owner=owner)
    if row is None:
        raise not_found("response", id_)
    return await run_in_threadpool(services_of(request).under_way.settled, row)


async def _read(request: Request, row: Row, answer: Callable[[Row], _T], column: str = "body") -> _T:
    """What is made, in a thread, of the status as it is now and a column that may be long."""
    store = services_of(request).store

    def work() -> _T:
        found = store.get(tables.responses, row["id"], "status", column)
        if found is None:
            raise not_found("response", row["id"])
        return answer(found)

    return await services_of(request).large_json.in_thread(row["bytes"], work)


def _shown(row: Row, job: ResponseJob | None, include: list[str]) -> Response:
    """The body as it stands; the very text that is kept, unless something of it is to be changed."""
    is_under_way, has_outputs = row["status"] in UNDER_WAY, not include or OUTPUTS in include
    if has_outputs and not is_under_way:
        return JsonText(row["body"])
    body: dict[str, Any] = json.loads(row["body"])
    if is_under_way:
        body["status"] = "queued" if job and job.body["status"] == "queued" else "in_progress"
    if not has_outputs:
        body["output"] = [{**item, "outputs": None} if "outputs" in item else item for item in body["output"]]
    return Json(body)


async def _stream_again(request: Request, row: Row, start: int) -> EventStream:
    """The events that were kept; of a response whose gateway was lost, only its end is known."""
    if row["status"] in UNDER_WAY:
        raise _elsewhere()
    if not row["background"]:
        raise invalid("Only a response with 'background' can be streamed again; ask for it without 'stream'.", "stream")
    services = services_of(request)
    events = await services.large_json.in_thread(row["bytes"], _kept_events, services.store, row["id"])
    if events:
        return EventStream(EventLog.of(events), lambda: None, start=start)
    end = await _read(request, row, lambda now: _end(now["status"], now["body"], start))
    return EventStream(EventLog.of([end]), lambda: None)


def _kept_events(store: Store, id_: str) -> list[Logged]:
    kept = store.get(tables.events, id_)
    return unpacked_events(kept["data"]) if kept else []


def _end(status: str, body: str, number: int) -> Logged:
    kind = f"response.{'incomplete' if status == 'cancelled' else status}"
    return Logged(kind, f'{{"type":"{kind}","response":{body},"sequence_number":{number}}}'.encode())


def _elsewhere() -> ApiError:
    return ApiError(409, "The response is under way in another gateway; poll it, or ask that one.", code="under_way")


def _stream(request: Request, job: ResponseJob, start: int) -> EventStream:
    jobs, is_kept = jobs_of(request), job.plan.request.background
    heartbeat = services_of(request).config.heartbeat
    return EventStream(job.log, lambda: None if is_kept else jobs.abandon(job), start=start, heartbeat=heartbeat)


routes = [
    Route("/v1/responses", create_response, methods=["POST"]),
    Route("/v1/responses/{response_id}", retrieve_response, methods=["GET"]),
    Route("/v1/responses/{response_id}", delete_response, methods=["DELETE"]),
    Route("/v1/responses/{response_id}/cancel", cancel_response, methods=["POST"]),
    Route("/v1/responses/{response_id}/input_items", list_input_items, methods=["GET"]),
]
