"""The routes `/v1/chat/completions` and `/v1/models`."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_tools.containers.records import Container
from agent_tools.gateway.chat.container import ChatContainer
from agent_tools.gateway.chat.job import ChatJob
from agent_tools.gateway.chat.request import ChatRequest, read_chat_request
from agent_tools.gateway.http import Json, is_wanted, jobs_of, owner_of, raw_body, read_json, services_of
from agent_tools.gateway.jobs.sse import EventStream, Pace, ended, unless_gone, while_there
from agent_tools.gateway.model_ids import model_path
from agent_tools.gateway.peers.peers import Elsewhere
from agent_tools.gateway.services import Services

_MODELS = "/v1/models/"


async def create_completion(request: Request) -> Response:
    """POST /v1/chat/completions."""
    services, body = services_of(request), await raw_body(request)
    wanted = await read_json(request, body, lambda given: read_chat_request(given, services.config))
    if wanted is None:
        return await services.upstream.pass_on(request, "chat/completions", body, is_wanted(request))
    if answer := await _answered_elsewhere(request, wanted, body):
        return answer
    job = await _started(request, wanted)
    if not wanted.stream:
        if not await ended(job.log, request):
            jobs_of(request).abandon(job)
            return Response(status_code=499)
        if job.failure:
            raise job.failure
        return await services.large_json.read(job.log.size, Json, job.completion)
    if not await unless_gone(job.log.after(0), request.receive):
        jobs_of(request).abandon(job)
        return Response(status_code=499)
    if job.failure and len(job.log.events) == 1:
        raise job.failure  # nothing was said yet: the status can still tell
    return EventStream(
        job.log, lambda: jobs_of(request).abandon(job), named=False, pace=Pace(services.config.heartbeat)
    )


async def list_models(request: Request) -> Response:
    """GET /v1/models."""
    return await services_of(request).upstream.pass_on(request, "models")


async def retrieve_model(request: Request) -> Response:
    """GET /v1/models/{id}."""
    path = model_path(request.scope["path"].removeprefix(_MODELS))  # all of it: a route's parameter ends at a newline
    return await services_of(request).upstream.pass_on(request, path)


async def _answered_elsewhere(request: Request, wanted: ChatRequest, body: bytes) -> Response | None:
    """Have the gateway answer that has the conversation's container; None if it is this one, or cannot be reached."""
    services = services_of(request)
    if request.scope["is_forwarded"] or not services.peers.are_there:
        return None
    session = services.conversations.session(request.headers)
    try:
        await run_in_threadpool(_look, services, wanted, owner_of(request), session)
    except Elsewhere as exc:
        return await services.peers.forward(request, body, exc.gateway)
    return None


def _look(services: Services, wanted: ChatRequest, owner: str, session: str) -> None:
    hold = ChatContainer(services, wanted, owner, session).hold
    if row := services.store.get(Container, hold.container_id):
        services.peers.look_for_holder(row)


async def _started(request: Request, wanted: ChatRequest) -> ChatJob:
    services, jobs = services_of(request), jobs_of(request)
    key = services.upstream.key(request.headers)
    session = services.conversations.session(request.headers)
    place = await while_there(jobs.enter(owner_of(request), needs_sandbox=True), request.receive)
    job = ChatJob(services, wanted, owner_of(request), key, session)
    jobs.follow(job, place)
    return job


routes = [
    Route("/v1/chat/completions", create_completion, methods=["POST"]),
    Route("/v1/models", list_models, methods=["GET"]),
    Route(_MODELS + "{model:path}", retrieve_model, methods=["GET"]),
]
