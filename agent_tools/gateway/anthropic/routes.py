"""The routes `/v1/messages` and `/v1/messages/count_tokens`.

An upstream that has them gets each request unchanged. One that answers that it has no such path is asked by chat
completions, and the answer is translated back; for a while it is then not asked for the path again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from agent_tools.agents.steps import Finished
from agent_tools.bodies.json_body import BodyRefused, parsed
from agent_tools.gateway.anthropic.composer import MessageComposer
from agent_tools.gateway.anthropic.request import MessagesRequest, read_messages_request
from agent_tools.gateway.event_log import EventLog
from agent_tools.gateway.http import (
    JsonResponse,
    add_upstream_headers,
    answer_by,
    jobs_of,
    key_still_valid,
    owner_of,
    raw_body,
    read_json,
    services_of,
)
from agent_tools.gateway.requests.api_errors import ApiError, revoked
from agent_tools.gateway.responses.token_count import count_tokens
from agent_tools.gateway.services import Services
from agent_tools.gateway.turn_job import TurnJob
from agent_tools.limits import KIB
from agent_tools.models.base import JsonObject
from agent_tools.models.wire import wire_tools

MAX_ERROR = 64 * KIB  # bytes of an error that is read
_LACKING = (404, 405, 501)  # statuses of a server that has no such path
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'


async def create_message(request: Request) -> Response:
    """POST /v1/messages."""
    services, jobs, owner, body = services_of(request), jobs_of(request), owner_of(request), await raw_body(request)
    if answer := await _passed_on(request, body):
        return answer
    wanted = await _read(request, body)
    key, place = services.upstream.key(request.headers), await jobs.enter(owner, needs_sandbox=False)
    job = MessageJob(services, wanted, owner, key)
    jobs.follow(job, place)
    is_streamed, whole = wanted.stream, lambda: job.composer.message
    answer = await answer_by(request, job, whole, stream=is_streamed, end=b"", sign_of_life=_PING)
    if answer.status_code == 200:
        services.upstream.record_no_messages()
    add_upstream_headers(request, wanted.model, wanted.options)
    return answer


async def count_message_tokens(request: Request) -> Response:
    """POST /v1/messages/count_tokens."""
    body = await raw_body(request)
    if answer := await _passed_on(request, body):
        return answer
    wanted = await _read(request, body, max_tokens=1)  # which is not asked for here
    asked = (wanted.model, wanted.messages, wire_tools(wanted.functions))
    count, _ = await count_tokens(services_of(request).upstream, request.headers, *asked)
    return JsonResponse({"input_tokens": count})


async def _passed_on(request: Request, body: bytes) -> Response | None:
    """Pass a request on; None if the upstream has no such path."""
    upstream = services_of(request).upstream
    if upstream.has_no_messages:
        return None
    path = request.scope["path"].removeprefix("/v1/")
    answer = await upstream.pass_on(request, path, body, key_still_valid(request))
    if answer.status_code not in _LACKING:
        return answer
    error = bytearray()
    async for piece in answer.body_iterator:
        assert isinstance(piece, bytes)
        error += piece
        if len(error) > MAX_ERROR:
            break
    if answer.background:
        await answer.background()  # closes the connection
    return Response(bytes(error), answer.status_code, media_type="application/json") if _is_anthropics(error) else None


def _is_anthropics(error: bytearray) -> bool:
    """Return True for an error of a server that has the path: it lacks something else, such as the model."""
    with suppress(BodyRefused):
        match parsed(error):
            case {"type": "error", "error": {"type": "not_found_error"}}:
                return True
    return False


async def _read(request: Request, body: bytes, **defaults: int) -> MessagesRequest:
    ignores = services_of(request).config.unknown_tools == "ignore"
    return await read_json(body, lambda given: read_messages_request({**defaults, **given}, ignores_tools=ignores))


class MessageJob(TurnJob):
    """A translated message; made in the event loop. The client runs all its tools."""

    def __init__(self, services: Services, request: MessagesRequest, owner: str, upstream_key: str) -> None:
        log = EventLog(services.config.max_response_bytes)
        super().__init__(services, owner, request.model, upstream_key, log, is_urgent=True)
        self._request = request
        self.composer = MessageComposer(request.model, shows_thinking=request.shows_thinking)

    def events(self) -> Generator[JsonObject, None, None]:
        """Make the message, event by event."""
        turn = self.turn((), self._request.functions, self._request.options)
        for number, step in enumerate(self.steps(turn, self._request.messages, ())):
            if isinstance(step, Finished) and step.reason == "cancelled" and not self._services.keys.has(self._owner):
                raise revoked()  # any other cancel: the client has disconnected
            if not number:
                yield from self.composer.begin()
            yield from self.composer.feed(step)

    def failed(self, failure: ApiError) -> Iterator[JsonObject]:
        """Yield the error as an event."""
        yield failure.anthropics_body
