"""The routes under `/v1/responses`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NoReturn, TypeVar

import anyio
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute

from agent_tools.bodies.json_body import in_thread, sized
from agent_tools.containers.records import Record
from agent_tools.gateway.background import ACTIVE
from agent_tools.gateway.event_log import EventLog, Logged, unpacked_events
from agent_tools.gateway.http import (
    JsonResponse,
    JsonTextResponse,
    add_upstream_headers,
    jobs_of,
    owner_of,
    page_of_texts,
    query_integer,
    raw_body,
    read_json,
    services_of,
)
from agent_tools.gateway.requests.api_errors import ApiError, invalid, not_found
from agent_tools.gateway.responses.compact_route import compact
from agent_tools.gateway.responses.input_tokens_route import count_input_tokens
from agent_tools.gateway.responses.job import ResponseJob, find_job, request_reader, start_job
from agent_tools.gateway.responses.listed_items import stored_items
from agent_tools.gateway.responses.notebook import notebook_of_items
from agent_tools.gateway.responses.request import OUTPUTS
from agent_tools.gateway.responses.stored_items import forget
from agent_tools.gateway.responses.websocket import BEGINNING, response_socket
from agent_tools.gateway.sse import EventStreamResponse, ended, unless_gone
from agent_tools.gateway.store.records import ResponseBody, ResponseHead, ResponseInput, StoredEvents
from agent_tools.gateway.store.store import Store
from agent_tools.models.base import JsonObject

_T = TypeVar("_T")
_Kind = TypeVar("_Kind", bound=Record)


async def create_response(request: Request) -> Response:
    """POST /v1/responses."""
    services, jobs = services_of(request), jobs_of(request)
    body = await raw_body(request)
    wanted = await read_json(body, request_reader(services))
    job = await start_job(request, request.receive, wanted)
    if wanted.stream:
        if not wanted.background:
            await _await_refusal(request, job)
        add_upstream_headers(request, wanted.model, wanted.options, wanted.ignored)
        return _stream(request, job, 0)
    if not wanted.background:
        if not await ended(job.log, request):
            jobs.abandon(job)
            return Response(status_code=499)
        if job.failure:
            raise job.failure
    add_upstream_headers(request, wanted.model, wanted.options, wanted.ignored)
    return await sized(len(job.answer), JsonTextResponse, job.answer)


async def _await_refusal(request: Request, job: ResponseJob) -> None:
    """Wait for the first event with content, or for `refusal_wait`: the status can change until then."""
    with anyio.move_on_after(services_of(request).config.refusal_wait):
        if not await unless_gone(job.log.after(BEGINNING), request.receive):
            jobs_of(request).abandon(job)
            raise ApiError(499, "The client has hung up.")
        is_refused = [event.kind for event in job.log.events[BEGINNING:][:1]] == ["error"]
        if is_refused and await ended(job.log, request) and job.failure:
            raise job.failure


async def retrieve_response(request: Request) -> Response:
    """GET /v1/responses/{id}; with `stream=true`, its events after `starting_after`."""
    is_stream = request.query_params.get("stream") == "true"
    if job := _unstored(request):
        if is_stream:
            raise _not_streamed()
        return await sized(len(job.answer), _in_progress, job.answer)
    job, head = await _job_and_head(request)
    if is_stream:
        after = query_integer(request, "starting_after", -(2**53))
        start = 0 if after is None else max(0, after + 1)
        return _stream(request, job, start) if job else await _stream_again(request, head, start)
    include = request.query_params.getlist("include") + request.query_params.getlist("include[]")
    return await _read(request, head, ResponseBody, lambda now: _shown(now, job, include))


async def delete_response(request: Request) -> Response:
    """DELETE /v1/responses/{id}; a response under way is cancelled."""
    if job := _unstored(request):
        jobs_of(request).abandon(job)
        await job.log.closed()  # then it is stored
    job, head = await _job_and_head(request)
    if job:
        jobs_of(request).abandon(job)
    elif head.status in ACTIVE:
        await _refuse_elsewhere(request, head)
    await run_in_threadpool(forget, services_of(request).store, head.id)
    return JsonResponse({"id": head.id, "object": "response.deleted", "deleted": True})


async def cancel_response(request: Request) -> Response:
    """POST /v1/responses/{id}/cancel."""
    job, head = (None, None) if _unstored(request) else await _job_and_head(request)
    if head is None or not head.background:
        raise invalid("Cannot cancel a synchronous response.")
    if job is None and head.status in ACTIVE:
        await _refuse_elsewhere(request, head)
    if job and not job.log.is_closed:
        jobs_of(request).abandon(job)
        await ended(job.log, request)
    return await _read(request, await _head(request), ResponseBody, lambda now: _shown(now, job, []))


async def list_input_items(request: Request) -> Response:
    """GET /v1/responses/{id}/input_items."""
    head = await _head(request)
    return await _read(request, head, ResponseInput, lambda now: page_of_texts(request, stored_items(now.input)))


async def response_notebook(request: Request) -> Response:
    """GET /v1/responses/{id}/notebook: the response and its input as a Jupyter notebook, once it has ended."""
    head = await _head(request)
    if head.status in ACTIVE:
        raise ApiError(409, "The response is under way; ask for its notebook once it has ended.", code="under_way")
    given = await _read(request, head, ResponseInput, lambda now: now.input)
    return await _read(request, head, ResponseBody, lambda now: _notebook(head.id, given, now.body))


def _notebook(id_: str, given: str, body: str) -> Response:
    items = [*(json.loads(each) for each in given.split("\n") if each), *json.loads(body)["output"]]
    return JsonResponse(
        notebook_of_items(items), headers={"Content-Disposition": f'attachment; filename="{id_}.ipynb"'}
    )


def _in_progress(answer: str) -> Response:
    return JsonResponse({**json.loads(answer), "status": "in_progress"})


def _unstored(request: Request) -> ResponseJob | None:
    """Return the job of a response that is made here while its client waits: it is stored at its end."""
    job = find_job(jobs_of(request), request.path_params["response_id"], owner_of(request))
    is_later = job and job.plan.request.store and not job.plan.request.background and not job.log.is_closed
    return job if is_later else None


async def _job_and_head(request: Request) -> tuple[ResponseJob | None, ResponseHead]:
    """Return the job that makes a response here, if one does, and the response's short columns.

    The job is looked for first: it stores its end before it leaves, so columns that are read later know of it.
    """
    job = find_job(jobs_of(request), request.path_params["response_id"], owner_of(request))
    return job, await _head(request)


async def _head(request: Request) -> ResponseHead:
    """Return the short columns of a response, settled: it may have been lost with its gateway."""
    services, id_ = services_of(request), request.path_params["response_id"]
    head = await run_in_threadpool(services.store.get, ResponseHead, id_, owner=owner_of(request))
    if head is None:
        raise not_found("response", id_)
    return await run_in_threadpool(services.background.settled, head)


async def _read(request: Request, head: ResponseHead, kind: type[_Kind], answer: Callable[[_Kind], _T]) -> _T:
    """Read columns that may be long, in a thread, and return what `answer` makes of them."""
    store = services_of(request).store

    def work() -> _T:
        found = store.get(kind, head.id)
        if found is None:
            raise not_found("response", head.id)
        return answer(found)

    return await in_thread(head.bytes, work)


def _shown(now: ResponseBody, job: ResponseJob | None, include: list[str]) -> Response:
    """Answer the stored text of the body, or a changed copy if fields must be hidden."""
    is_active, has_outputs = now.status in ACTIVE, not include or OUTPUTS in include
    if has_outputs and not is_active:
        return JsonTextResponse(now.body)
    body: JsonObject = json.loads(now.body)
    if is_active:
        body["status"] = "queued" if job and job.body["status"] == "queued" else "in_progress"
    if not has_outputs:
        body["output"] = [{**item, "outputs": None} if "outputs" in item else item for item in body["output"]]
    return JsonResponse(body)


async def _stream_again(request: Request, head: ResponseHead, start: int) -> Response:
    """Stream stored events; of a response whose gateway was lost, only its end is known."""
    if head.status in ACTIVE:
        await _refuse_elsewhere(request, head)
    if not head.background:
        raise _not_streamed()
    services = services_of(request)
    events = await in_thread(head.bytes, _kept_events, services.store, head.id)
    if events:
        return EventStreamResponse(EventLog.of(events), lambda: None, start=start)
    end = await _read(request, head, ResponseBody, lambda now: _end(now, start))
    return EventStreamResponse(EventLog.of([end]), lambda: None)


def _not_streamed() -> ApiError:
    return invalid("Only a response with 'background' can be streamed again; ask for it without 'stream'.", "stream")


def _kept_events(store: Store, id_: str) -> list[Logged]:
    kept = store.get(StoredEvents, id_)
    return unpacked_events(kept.data) if kept else []


def _end(now: ResponseBody, number: int) -> Logged:
    kind = f"response.{'incomplete' if now.status == 'cancelled' else now.status}"
    return Logged(kind, f'{{"type":"{kind}","response":{now.body},"sequence_number":{number}}}'.encode())


async def _refuse_elsewhere(request: Request, head: ResponseHead) -> NoReturn:
    """Refuse what only the gateway that makes a response can do."""
    name = await run_in_threadpool(services_of(request).membership.name_of, head.gateway)
    raise ApiError(
        421,
        f"The response runs in the gateway {name or 'that has just ended'}. Ask that one, or poll the response here.",
        code="response_elsewhere",
    )


def _stream(request: Request, job: ResponseJob, start: int) -> EventStreamResponse:
    jobs, is_kept = jobs_of(request), job.plan.request.background
    on_gone = (lambda: None) if is_kept else (lambda: jobs.abandon(job))
    return EventStreamResponse(job.log, on_gone, start=start, heartbeat=services_of(request).config.heartbeat)


routes = [
    Route("/v1/responses/input_tokens", count_input_tokens, methods=["POST"]),
    Route("/v1/responses/compact", compact, methods=["POST"]),
    Route("/v1/responses", create_response, methods=["POST"]),
    WebSocketRoute("/v1/responses", response_socket),
    Route("/v1/responses/{response_id}", retrieve_response, methods=["GET"]),
    Route("/v1/responses/{response_id}", delete_response, methods=["DELETE"]),
    Route("/v1/responses/{response_id}/cancel", cancel_response, methods=["POST"]),
    Route("/v1/responses/{response_id}/input_items", list_input_items, methods=["GET"]),
    Route("/v1/responses/{response_id}/notebook", response_notebook, methods=["GET"]),
]
