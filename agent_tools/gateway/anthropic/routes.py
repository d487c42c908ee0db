"""The routes `/v1/messages` and `/v1/messages/count_tokens`.

An upstream that has them gets each request unchanged. One that answers that it has no such path is asked by chat
completions, and the answer is translated back; for a while it is then not asked for the path again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from agent_tools.agents.steps import Finished
from agent_tools.agents.turn.loop import ToolLoop
from agent_tools.bodies.json_body import LargeJson
from agent_tools.gateway.anthropic.composer import MessageComposer
from agent_tools.gateway.anthropic.request import MessagesRequest, read_counted, read_messages_request
from agent_tools.gateway.http import (
    JsonResponse,
    is_wanted,
    jobs_of,
    note_upstream,
    owner_of,
    raw_body,
    read_json,
    services_of,
)
from agent_tools.gateway.requests.failures import ApiError, revoked
from agent_tools.gateway.responses.compaction import count_tokens
from agent_tools.gateway.services import Services
from agent_tools.gateway.sse import EventLog, EventStreamResponse, ended, unless_gone
from agent_tools.gateway.turn_job import TurnJob
from agent_tools.models.base import JsonObject
from agent_tools.models.wire import wire_tools

_LACKING = (404, 405, 501)  # statuses of a server that has no such path
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'


async def create_message(request: Request) -> Response:
    """POST /v1/messages."""
    services, body = services_of(request), await raw_body(request)
    if answer := await _passed_on(request, body):
        return answer
    wanted = await read_json(body, partial(read_messages_request, ignores_tools=_ignores_tools(services)))
    key = services.upstream.key(request.headers)
    place = await jobs_of(request).enter(owner_of(request), needs_sandbox=False)
    job = MessageJob(services, wanted, owner_of(request), key)
    jobs_of(request).follow(job, place)
    abandon = partial(jobs_of(request).abandon, job)
    is_there = await (unless_gone(job.log.after(0), request.receive) if wanted.stream else ended(job.log, request))
    if not is_there:
        abandon()
        return Response(status_code=499)
    if job.failure and (not wanted.stream or len(job.log.events) == 1):
        raise job.failure  # nothing was sent yet, so the status can still report the error
    services.upstream.note_no_messages()
    note_upstream(request, wanted.model, wanted.options)
    if not wanted.stream:
        return await LargeJson.here().read(job.log.size, JsonResponse, job.message)
    return EventStreamResponse(job.log, abandon, heartbeat=services.config.heartbeat, end=b"", sign_of_life=_PING)


async def count_message_tokens(request: Request) -> Response:
    """POST /v1/messages/count_tokens."""
    services, body = services_of(request), await raw_body(request)
    if answer := await _passed_on(request, body):
        return answer

    def read(given: JsonObject) -> tuple[str, list[JsonObject], list[JsonObject]]:
        messages, functions = read_counted(given, ignores_tools=_ignores_tools(services))
        return str(given["model"]), messages, wire_tools(functions)

    count, _ = await count_tokens(services.upstream, request.headers, *await read_json(body, read))
    return JsonResponse({"input_tokens": count})


async def _passed_on(request: Request, body: bytes) -> Response | None:
    """Pass a request on; None if the upstream has no such path."""
    upstream = services_of(request).upstream
    if upstream.has_no_messages:
        return None
    path = request.scope["path"].removeprefix("/v1/")
    answer = await upstream.pass_on(request, path, body, is_wanted(request))
    if answer.status_code not in _LACKING:
        return answer
    if answer.background:
        await answer.background()  # closes the connection
    return None


def _ignores_tools(services: Services) -> bool:
    return services.config.unknown_tools == "ignore"


class MessageJob(TurnJob):
    """A translated message; made in the event loop. The client runs all its tools."""

    def __init__(self, services: Services, request: MessagesRequest, owner: str, upstream_key: str) -> None:
        log = EventLog(services.config.max_response_bytes)
        super().__init__(services, owner, request.model, upstream_key, log, is_urgent=True)
        self._request = request
        self._owner = owner
        self._key = upstream_key
        self._composer = MessageComposer(request.model, shows_thinking=request.shows_thinking)

    @property
    def message(self) -> JsonObject:
        """The whole message, once it is over."""
        return self._composer.message

    def events(self) -> Generator[JsonObject, None, None]:
        """Make the message, event by event."""
        for number, step in enumerate(self.steps(self._turn(), self._request.messages, [])):
            if isinstance(step, Finished) and step.reason == "cancelled" and not self._services.keys.has(self._owner):
                raise revoked()  # any other cancel: the client has disconnected
            if not number:
                yield from self._composer.begin()
            yield from self._composer.feed(step)

    def failed(self, failure: ApiError) -> Iterator[JsonObject]:
        """Yield the error as an event."""
        yield failure.anthropics_body

    def _turn(self) -> ToolLoop:
        config, request = self._services.config, self._request
        return ToolLoop(
            self._services.upstream.model(request.model, self._key),
            client_functions=request.functions,
            options=request.options,
            max_rounds=config.max_rounds,
            deadline=config.turn_timeout,
            format_beside_tools=self._services.upstream.takes_format_beside_tools,
        )
