"""The routes `/v1/chat/completions` and `/v1/models`."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_tools.containers.records import ContainerRecord
from agent_tools.gateway.chat_job import ChatContainer, ChatJob
from agent_tools.gateway.chat_request import ChatRequest, read_chat_request
from agent_tools.gateway.http import (
    add_upstream_headers,
    answer_by,
    jobs_of,
    key_still_valid,
    owner_of,
    raw_body,
    read_json,
    services_of,
)
from agent_tools.gateway.model_ids import model_path
from agent_tools.gateway.services import Services
from agent_tools.gateway.sse import while_there

_MODELS = "/v1/models/"


async def create_completion(request: Request) -> Response:
    """POST /v1/chat/completions."""
    services, body = services_of(request), await raw_body(request)
    wanted = await read_json(body, lambda given: read_chat_request(given, services.config))
    if wanted is None:
        return await services.upstream.pass_on(request, "chat/completions", body, key_still_valid(request))
    job = await _started(request, wanted)
    answer = await answer_by(request, job, lambda: job.completion, stream=wanted.stream, named=False)
    add_upstream_headers(request, wanted.model, wanted.options)
    return answer


async def list_models(request: Request) -> Response:
    """GET /v1/models."""
    return await services_of(request).upstream.pass_on(request, "models")


async def retrieve_model(request: Request) -> Response:
    """GET /v1/models/{id}."""
    path = model_path(request.scope["path"].removeprefix(_MODELS))  # all of it: a route's parameter ends at a newline
    return await services_of(request).upstream.pass_on(request, path)


def _check_holder(services: Services, wanted: ChatRequest, owner: str, session: str) -> None:
    """Check that no other gateway has the conversation's sandbox. Raises ContainerElsewhere."""
    lease = ChatContainer(services, wanted, owner, session).lease
    if row := services.store.get(ContainerRecord, lease.container_id):
        services.containers.leases.check_holder(row)


async def _started(request: Request, wanted: ChatRequest) -> ChatJob:
    services, jobs = services_of(request), jobs_of(request)
    key = services.upstream.key(request.headers)
    session = services.conversations.session(request.headers)
    if services.membership.has_others:
        await run_in_threadpool(_check_holder, services, wanted, owner_of(request), session)
    slot = await while_there(jobs.enter(owner_of(request), needs_sandbox=True), request.receive)
    job = ChatJob(services, wanted, owner_of(request), key, session)
    jobs.follow(job, slot)
    return job


routes = [
    Route("/v1/chat/completions", create_completion, methods=["POST"]),
    Route("/v1/models", list_models, methods=["GET"]),
    Route(_MODELS + "{model:path}", retrieve_model, methods=["GET"]),
]
