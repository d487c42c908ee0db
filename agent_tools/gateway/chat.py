"""The routes `/v1/chat/completions` and `/v1/models`."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_tools.agents.steps import CallRunning, Finished, ReasoningDelta, RefusalDelta, RoundDone, Step, TextDelta
from agent_tools.containers.failures import ContainerExpired, ContainerNotFound, ContainersError, TooManyContainers
from agent_tools.containers.records import ContainerRecord, new_id
from agent_tools.containers.spec import ContainerSpec, check_memory
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.conversations.recognised import Sender
from agent_tools.gateway.http import (
    answer_by,
    is_wanted,
    jobs_of,
    note_upstream,
    owner_of,
    raw_body,
    read_json,
    services_of,
)
from agent_tools.gateway.requests.failures import ApiError, invalid, revoked
from agent_tools.gateway.requests.fields import Given, Needed, read
from agent_tools.gateway.services import Services
from agent_tools.gateway.sse import EventLog, while_there
from agent_tools.gateway.store.store import StoreError
from agent_tools.gateway.tools.tool import ContainerLease, ContainerTool
from agent_tools.gateway.turn_job import TurnJob
from agent_tools.gateway.upstream import model_path
from agent_tools.models.base import Json, JsonObject, Usage
from agent_tools.models.wire import SERVER_FIELDS_KNOWN, wire_messages, wire_usage, with_server_fields

# A request for a chat completion, read if its code is run here.

CODE = "code_interpreter"
_OURS = ("messages", "tools", "model", "stream", "stream_options", "n", "functions", "function_call")


@dataclass(frozen=True)
class ChatRequest:
    """A completion; the gateway runs calls of `ours`, the client runs `others`.

    Attributes:
        ours: functions that the client declares; an empty dict means the built-in code interpreter.
        container_id: the container that the client names, '' for the container of the conversation.
        memory: the memory tier of a new container, None for the usual one.
        user: the client's own user and safety identifier, '' without one.
        cache_key: `prompt_cache_key`, '' without one.
    """

    model: str
    messages: list[JsonObject]
    ours: tuple[JsonObject, ...]
    others: tuple[JsonObject, ...]
    options: Mapping[str, Any]
    stream: bool
    with_usage: bool
    container_id: str = ""
    memory: str | None = None
    user: str = ""
    cache_key: str = ""


class _Auto(Given):
    memory_limit: str | None = None


class _Function(Given):
    parameters: dict[str, Any] | None = None


class _StreamOptions(Given):
    include_usage: Any = None


class _Chat(Given):
    tools: list[Any]
    n: Annotated[int, Field(ge=1)] = 1
    messages: list[Any] = []
    model: Needed
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()


def read_chat_request(body: Mapping[str, Any], config: GatewayConfig) -> ChatRequest | None:
    """Check a request; return None if the gateway runs none of its tools and only passes it on."""
    tools = body.get("tools")
    tools = tools if isinstance(tools, list) else []
    declared = [tool["function"] for tool in tools if _is_function(tool)]
    routed = [function for function in declared if function["name"] in config.router_tools]
    built_in: list[JsonObject] = [{}] if any(map(_is_built_in, tools)) else []
    if not routed and not built_in:
        return None
    return _read(body, (*built_in, *routed), declared, config)


def _read(
    body: Mapping[str, Any], ours: tuple[JsonObject, ...], declared: list[JsonObject], config: GatewayConfig
) -> ChatRequest:
    given = read(_Chat, body)
    for index, tool in enumerate(given.tools):
        if _is_function(tool):
            read(_Function, tool["function"], f"tools[{index}].function")
        elif config.unknown_tools == "refuse" and not _is_built_in(tool):
            raise _unknown(tool, f"tools[{index}].type")
    if {} in ours and any(function["name"] == config.tool_name for function in declared):
        raise invalid(f"A function cannot be called {config.tool_name!r} beside the code interpreter.", "tools")
    if given.n != 1:
        raise invalid("Only one choice is possible when the gateway runs code: set 'n' to 1.", "n", "unsupported_value")
    if not given.messages or not all(isinstance(message, dict) for message in given.messages):
        raise invalid("'messages' is an array of one or more objects.", "messages")
    container_id, memory = _container(given.tools) if {} in ours else ("", None)
    return ChatRequest(
        model=given.model,
        messages=given.messages,
        ours=ours,
        others=tuple(function for function in declared if function not in ours),
        options=_options(body, config.tool_name),
        stream=given.stream,
        with_usage=bool(given.stream_options.include_usage),
        container_id=container_id,
        memory=memory,
        user=" ".join(str(body[name]) for name in ("user", "safety_identifier") if body.get(name)),
        cache_key=str(body.get("prompt_cache_key") or ""),
    )


def _unknown(tool: Any, param: str) -> ApiError:
    kind = tool.get("type") if isinstance(tool, dict) else tool
    message = f"Tools of type {kind!r:.40} are not supported here: use 'code_interpreter' or 'function'."
    return invalid(message, param, "unsupported_value")


def _container(tools: list[Any]) -> tuple[str, str | None]:
    """Return the id of the container that the built-in tool names, or '' and the memory of a new one.

    The tool has the fields of the responses API; without a `container`, the conversation's own is used.
    """
    index, tool = next((n, tool) for n, tool in enumerate(tools) if _is_built_in(tool))
    param, value = f"tools[{index}].container", tool.get("container")
    if value is None or isinstance(value, str):
        return value or "", None
    if not isinstance(value, dict) or value.get("type") != "auto":
        raise invalid(f"Invalid value for '{param}': expected an id, or an object of type 'auto'.", param)
    if other := next((name for name in value if name not in ("type", "memory_limit")), None):
        message = f"'{param}.{other}' is not supported here: create a container (POST /v1/containers) and give its id."
        raise invalid(message, f"{param}.{other}", "unsupported_parameter")
    return "", read(_Auto, value, param).memory_limit


def _options(body: Mapping[str, Any], tool_name: str) -> JsonObject:
    """Return the client's other fields, with the code interpreter's name for the model in `tool_choice`."""
    options = _others(body)
    choice = options.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == CODE:
        options["tool_choice"] = {"type": "function", "function": {"name": tool_name}}
    return options


def _others(body: Mapping[str, Any]) -> JsonObject:
    """Return the client's other fields, for the upstream's body; one called `extra_body` is a field like any other."""
    fields = {key: value for key, value in body.items() if key not in _OURS}
    return {**fields, "extra_body": {"extra_body": fields["extra_body"]}} if "extra_body" in fields else fields


def _is_built_in(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type") == CODE


def _is_function(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str) and bool(function["name"])


# The chunks of a chat completion, from a turn's steps, and the whole that they add up to. Pure.
#
# The fields are those of https://platform.openai.com/docs/api-reference/chat-streaming.

Chunk = JsonObject
_REASONS = {"pending": "tool_calls", "rounds": "length", "deadline": "length", "cancelled": "stop"}


class ChatComposer:
    """Turns steps into chunks; `completion` is the whole, once the turn is finished."""

    def __init__(self, model: str, with_usage: bool, with_logprobs: bool = False) -> None:
        head = {"id": new_id("chatcmpl"), "created": int(time.time()), "model": model}
        self._chunk = {**head, "object": "chat.completion.chunk"}
        self._head = {**head, "object": "chat.completion"}
        self._with_usage = with_usage
        self._with_logprobs = with_logprobs
        self._logprobs: list[Json] = []
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._reasoning: list[str] = []
        self._ends_paragraph = False
        self._said: JsonObject = {}  # the model's latest message, with the fields of its server
        self._more: JsonObject = {}
        self.completion: JsonObject = {}

    def begin(self) -> Iterator[Chunk]:
        """Yield the first chunk."""
        yield self._of({"role": "assistant", "content": ""})

    def feed(self, step: Step) -> Iterator[Chunk]:
        """Yield the chunks of a step."""
        match step:
            case RefusalDelta(text):
                self._refusal.append(text)
                yield self._of({"refusal": text})
            case TextDelta(text, logprobs):
                if self._ends_paragraph and self._text:
                    text = f"\n\n{text}"
                self._ends_paragraph = False
                self._text.append(text)
                self._logprobs += logprobs
                yield self._of({"content": text}, logprobs=logprobs)
            case ReasoningDelta(text):
                self._reasoning.append(text)
                yield self._of({"reasoning_content": text})
            case RoundDone(messages=messages):
                self._said = next(iter(with_server_fields(wire_messages(messages), str(self._head["model"]))), {})
            case CallRunning():
                self._ends_paragraph = True
            case Finished():
                yield from self._finish(step)

    def _finish(self, step: Finished) -> Iterator[Chunk]:
        pending = {call.id for call in step.pending}
        calls = [call for call in self._said.get("tool_calls") or () if call["id"] in pending]
        self._more = {name: self._said[name] for name in SERVER_FIELDS_KNOWN if name in self._said}
        if self._more:  # the client sends them back with the message
            yield self._of(self._more)
        if calls:
            yield self._of({"tool_calls": [{"index": index, **call} for index, call in enumerate(calls)]})
        known = step.reason in ("stop", "length", "content_filter", "tool_calls")
        reason = step.reason if known else _REASONS.get(step.reason, "stop")
        self.completion = self._completion(calls, reason, step.usage)
        yield self._of({}, reason)
        if self._with_usage:
            yield {**self._chunk, "choices": [], "usage": wire_usage(step.usage)}

    def _completion(self, calls: list[JsonObject], reason: str, usage: Usage) -> JsonObject:
        text, refusal = "".join(self._text), "".join(self._refusal) or None
        content = text or (None if calls or refusal else "")
        message: JsonObject = {"role": "assistant", "content": content, "refusal": refusal}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        message |= self._more
        if calls:
            message["tool_calls"] = calls
        logprobs = self._shown(self._logprobs)
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": logprobs}
        return {**self._head, "choices": [choice], "usage": wire_usage(usage)}

    def _of(self, delta: JsonObject, reason: str | None = None, logprobs: Sequence[Json] = ()) -> Chunk:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": self._shown(logprobs)}
        return {**self._chunk, "choices": [choice]}

    def _shown(self, logprobs: Sequence[Json]) -> JsonObject | None:
        return {"content": list(logprobs), "refusal": None} if logprobs and self._with_logprobs else None


_MODELS = "/v1/models/"


async def create_completion(request: Request) -> Response:
    """POST /v1/chat/completions."""
    services, body = services_of(request), await raw_body(request)
    wanted = await read_json(body, lambda given: read_chat_request(given, services.config))
    if wanted is None:
        return await services.upstream.pass_on(request, "chat/completions", body, is_wanted(request))
    job = await _started(request, wanted)
    answer = await answer_by(request, job, lambda: job.completion, stream=wanted.stream, named=False)
    note_upstream(request, wanted.model, wanted.options)
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
    if services.presence.has_others:
        await run_in_threadpool(_check_holder, services, wanted, owner_of(request), session)
    place = await while_there(jobs.enter(owner_of(request), needs_sandbox=True), request.receive)
    job = ChatJob(services, wanted, owner_of(request), key, session)
    jobs.follow(job, place)
    return job


routes = [
    Route("/v1/chat/completions", create_completion, methods=["POST"]),
    Route("/v1/models", list_models, methods=["GET"]),
    Route(_MODELS + "{model:path}", retrieve_model, methods=["GET"]),
]


# A routed chat completion as a job: one turn, with one container for all its calls.


class ChatJob(TurnJob):
    """A routed chat completion; made in the event loop."""

    def __init__(
        self, services: Services, request: ChatRequest, owner: str, upstream_key: str, session: str = ""
    ) -> None:
        super().__init__(services, owner, request.model, upstream_key, EventLog(services.config.max_response_bytes))
        self._request = request
        self._owner = owner
        self._session = session
        self._container: ChatContainer | None = None
        self._composer = ChatComposer(request.model, request.with_usage, bool(request.options.get("logprobs")))

    @property
    def completion(self) -> JsonObject:
        """The whole completion, once it is over."""
        return self._composer.completion

    def events(self) -> Generator[Chunk, None, None]:
        """Make the completion, chunk by chunk."""
        container = self._container = ChatContainer(self._services, self._request, self._owner, self._session)
        tools = [ContainerTool(container.lease, function) for function in self._request.ours]
        pictures = self._services.config.pictures_shown(self._request.model)
        turn = self.turn(tools, self._request.others, self._request.options, show_pictures=pictures)
        for number, step in enumerate(self.steps(turn, self._request.messages, tools)):
            if isinstance(step, Finished) and step.reason == "cancelled" and not self._services.keys.has(self._owner):
                raise revoked()  # any other cancel: the client has disconnected
            if not number:
                yield from self._composer.begin()
            chunks = list(self._composer.feed(step))
            if self.completion:
                container.note(self.completion["choices"][0]["message"])  # before the client hears of the end
            yield from chunks

    def failed(self, failure: ApiError) -> Iterator[Chunk]:
        """Yield the error in place of a chunk."""
        yield failure.body

    def close(self) -> None:
        """Release the container."""
        if self._container:
            self._container.close()
        super().close()


# The container of a chat completion: named by the client, found by the conversation, or new.


ORIGIN = "chat"  # the origin and the name of containers that are made here
LOST = "[The container that earlier calls ran in is gone: its variables and files are lost; this is a new one.]\n\n"


class ChatContainer:
    """The container of a chat completion. Made in a thread, since it reads the store; the tools share `lease`.

    Raises:
        ContainersError: the client's container does not exist, or its memory is more than allowed.
        StoreError: the store cannot be read.
    """

    def __init__(self, services: Services, request: ChatRequest, owner: str, session: str) -> None:
        self._services = services
        self._owner = owner
        self._memory = request.memory
        sender = Sender(owner, request.user, session, request.cache_key)
        self._conversation = services.conversations.of(sender, request.messages)
        self._has_session = bool(session)
        self._is_found_again = False
        self.lease = self._leased(request.container_id)

    def note(self, message: Mapping[str, Any]) -> None:
        """Store the answer's fingerprints, so that the conversation's next request finds the container."""
        messages: Iterable[Mapping[str, Any]] = [message]
        container_id = self.lease.container_id if self.lease.has_container else ""
        self._services.conversations.note(self._conversation, messages, container_id)
        self._is_found_again |= self._has_session or self._services.config.match_text or bool(message.get("tool_calls"))

    def close(self) -> None:
        """Release the container; delete it if no later request could find it."""
        self.lease.close()
        if self.lease.has_made and not self._is_found_again:
            with suppress(ContainersError, StoreError):  # else it expires
                self._services.containers.delete(self._owner, self.lease.container_id)

    def _leased(self, named: str) -> ContainerLease:
        containers = self._services.containers
        if named:
            row = containers.active(self._owner, named)
            own_skills = self._services.skills.of_container(row.skills)
            return ContainerLease(containers, row.id, network=row.network, own_skills=own_skills)
        known = self._services.conversations.find(self._conversation)
        if known.container_id:
            with suppress(ContainerNotFound, ContainerExpired):
                row = containers.active(self._owner, known.container_id)
                return ContainerLease(containers, row.id, network=row.network)
        check_memory(self._memory, containers.config)
        lease = ContainerLease(containers, new_id("cntr"), self._make)
        lease.note = LOST if known.container_id or known.was_lost else ""
        return lease

    def _make(self) -> None:
        """Create the container; at the owner's limit, delete the one unused for longest."""
        containers, spec = self._services.containers, ContainerSpec(ORIGIN, self._memory, origin=ORIGIN)
        try:
            containers.create(self._owner, spec, self.lease.container_id)
        except TooManyContainers:
            if not containers.end_unused(self._owner, ORIGIN):
                raise
            containers.create(self._owner, spec, self.lease.container_id)
