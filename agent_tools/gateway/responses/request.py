"""A request for a response, checked. Unsupported values of fields are errors; unknown fields are ignored.

The fields are those of https://platform.openai.com/docs/api-reference/responses/create.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Union

from pydantic import AfterValidator, FailFast, Field, TypeAdapter

from agent_tools.containers.ids import new_id
from agent_tools.gateway.remote_mcp.allowed_servers import AllowedServers
from agent_tools.gateway.requests.api_errors import invalid, missing
from agent_tools.gateway.requests.container_fields import Needed, Unsupported
from agent_tools.gateway.requests.fields import (
    ARRAY,
    OBJECT,
    TEXT,
    Count,
    Metadata,
    Objects,
    RequestModel,
    by_shape,
    read,
)
from agent_tools.gateway.responses.summary_item import TRIGGER
from agent_tools.gateway.responses.tools import Tools, Unknown, loaded_tools, read_tools
from agent_tools.gateway.store.records import ResponseEnd
from agent_tools.models.base import JsonObject

ENCRYPTED = "reasoning.encrypted_content"
OUTPUTS = "code_interpreter_call.outputs"
LOGPROBS = "message.output_text.logprobs"
DETAILS = "agent_tools.outputs"
"""Ours: outputs as events while the code runs, and in the item their figures as data and the name of an error."""
MIN_THRESHOLD = 1_000  # tokens
_IN_VAIN = (
    *("file_search_call.results", "web_search_call.results", "web_search_call.action.sources"),
    *("message.input_image.image_url", "computer_call_output.output.image_url"),
)
"""Values of `include` that belong to unsupported tools; they are accepted."""
_INCLUDABLE = frozenset((*_IN_VAIN, OUTPUTS, LOGPROBS, DETAILS, ENCRYPTED))
_SAMPLING = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
_TEXTS = {"prompt_cache_key": None, "safety_identifier": None, "service_tier": "default", "user": None}
"""Fields of the same name and meaning in chat completions, with the defaults that a response repeats."""


def _include(names: list[Any]) -> list[Any]:
    for index, name in enumerate(names):
        if not isinstance(name, str) or name not in _INCLUDABLE:
            raise invalid(f"Invalid value: {name!r:.60}.", f"include[{index}]", "invalid_value")
    return names


class _Reasoning(RequestModel):
    effort: Any = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None  # the old name of `summary`


class _Format(RequestModel):
    type: Literal["text", "json_object", "json_schema"] = "text"


class _Schema(RequestModel):
    name: Needed
    schema_: dict[str, Any] = Field(alias="schema")


class _Text(RequestModel):
    format: _Format | None = None
    verbosity: str | None = None


class _StreamOptions(RequestModel):
    include_obfuscation: bool = False
    include_usage: Any = None


class _Compaction(RequestModel):
    type: Literal["compaction"]
    compact_threshold: int = Field(ge=MIN_THRESHOLD)


class _ConversationName(RequestModel):
    id: Needed


_OBJECTS = TypeAdapter(Objects)


def _of_objects(items: list[Any]) -> list[Any]:
    if not {dict}.issuperset(map(type, items)):  # a tenth of the time that the adapter takes, which names the wrong one
        _OBJECTS.validate_python(items)
    return items


_Input = Annotated[
    Union[Annotated[str, TEXT], Annotated[list[Any], AfterValidator(_of_objects), ARRAY]],
    by_shape("a string or an array"),
]
_Named = Annotated[
    Union[Annotated[Needed, TEXT], Annotated[_ConversationName, OBJECT]], by_shape("a string or an object")
]


class _Fields(RequestModel):
    """The fields that are read here."""

    model: Needed
    input: _Input | None = None
    instructions: str | None = None
    tools: Objects = Field(default_factory=list)  # a default would be copied in each request
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Count | None = None
    include: Annotated[list[Any], AfterValidator(_include)] = Field(default_factory=list)
    previous_response_id: str | None = None
    conversation: _Named | None = None
    context_management: Annotated[list[_Compaction], FailFast()] = Field(default_factory=list)
    store: bool = True
    stream: bool = False
    background: bool = False
    metadata: Metadata = Field(default_factory=dict)
    max_output_tokens: Count | None = None
    truncation: Literal["auto", "disabled"] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    prompt: Unsupported = None
    moderation: Unsupported = None  # a request for safety, which must not be ignored
    background_options: Unsupported = None
    reasoning: _Reasoning = _Reasoning()
    text: _Text = _Text()
    stream_options: _StreamOptions = _StreamOptions()
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    user: str | None = None

    @property
    def summary(self) -> str | None:
        """The kind of summary of the reasoning that is asked for."""
        return self.reasoning.summary or self.reasoning.generate_summary

    @property
    def sampling(self) -> dict[str, float]:
        """The fields on sampling that the request has."""
        return {name: getattr(self, name) for name in _SAMPLING if getattr(self, name) is not None}


_KNOWN = frozenset(_Fields.model_fields)
_INNER: dict[str, type[RequestModel]] = {"reasoning": _Reasoning, "text": _Text, "stream_options": _StreamOptions}


@dataclass(frozen=True)
class ResponseRequest:
    """A checked request. `options` are fields of chat completions; the response repeats `echo`.

    Attributes:
        recent: the response before, where the client's connection has it and the store need not be asked.
        compacts: the answer is a summary of the conversation, which replaces it.
        is_padded: the deltas of the stream are padded.
        brought: the tools that items of the conversation have brought, those of the input included.
        generates: the model is asked; else the conversation is only made ready for the next response.
        ignored: the fields that have no meaning here and are not sent on.
    """

    model: str
    input: list[JsonObject]
    tools: Tools
    instructions: str | None = None
    include: frozenset[str] = frozenset()
    previous_response_id: str | None = None
    conversation: str | None = None
    max_tool_calls: int | None = None
    compact_threshold: int | None = None
    compacts: bool = False
    store: bool = True
    stream: bool = False
    background: bool = False
    is_padded: bool = False
    recent: ResponseEnd | None = None
    brought: Sequence[JsonObject] = ()
    generates: bool = True
    ignored: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    echo: Mapping[str, Any] = field(default_factory=dict)

    @property
    def with_outputs(self) -> bool:
        """The outputs of code are shown."""
        return OUTPUTS in self.include

    @property
    def with_details(self) -> bool:
        """The outputs of code are shown while it runs, with fields beyond OpenAI's."""
        return DETAILS in self.include

    @property
    def with_encrypted(self) -> bool:
        """The model's reasoning is shown encrypted, too."""
        return ENCRYPTED in self.include

    @property
    def with_summary(self) -> bool:
        """The model's reasoning is shown as its summary."""
        return bool((self.echo.get("reasoning") or {}).get("summary"))

    @property
    def with_logprobs(self) -> bool:
        """The log probabilities of the answer's tokens are shown."""
        return bool(self.options.get("logprobs"))


def read_request(
    body: Mapping[str, Any],
    unknown_tools: Unknown = "refuse",
    passed: Sequence[str] = (),
    servers: AllowedServers | None = None,
) -> ResponseRequest:
    """Check a request. Unsupported tools are errors or ignored; fields that `passed` names are sent on.

    `servers` are the MCP servers that it may name.

    Raises:
        ApiError: 400; `param` names the field.
    """
    fields = read(_Fields, body)
    items, compacts = _without_trigger(_items(fields))
    tools = read_tools(fields.tools, fields.tool_choice, unknown_tools, servers, loaded_tools(items))
    if fields.background and not fields.store:
        raise invalid("A response in the background needs 'store' to be true.", "background")
    if fields.conversation is not None and fields.previous_response_id is not None:
        message = "Give 'previous_response_id' or 'conversation', not both: each names an earlier conversation."
        raise invalid(message, "conversation", "mutually_exclusive_parameters")
    named = fields.conversation
    rules = fields.context_management
    return ResponseRequest(
        model=fields.model,
        input=items,
        tools=tools,
        instructions=fields.instructions,
        include=frozenset(fields.include),
        previous_response_id=fields.previous_response_id,
        conversation=named.id if isinstance(named, _ConversationName) else named,
        max_tool_calls=fields.max_tool_calls,
        compact_threshold=rules[-1].compact_threshold if rules else None,
        compacts=compacts,
        store=fields.store,
        stream=fields.stream,
        background=fields.background,
        is_padded=fields.stream_options.include_obfuscation,
        ignored=tuple(_ignored(body, passed)),
        options={
            **_options(fields, body, tools),
            **{name: body[name] for name in passed if body.get(name) is not None},
        },
        echo=_echo(fields, body),
    )


def _ignored(body: Mapping[str, Any], passed: Sequence[str]) -> Iterator[str]:
    """Yield the names of fields that have no meaning here and are not sent on."""
    yield from (name for name in body if name not in _KNOWN and name not in passed and body[name] is not None)
    yield from (f"include.{name}" for name in body.get("include") or () if name in _IN_VAIN)
    if body.get("truncation") == "auto":
        yield "truncation"
    for outer, model in _INNER.items():
        yield from (f"{outer}.{name}" for name in body.get(outer) or () if name not in model.model_fields)


def _items(given: _Fields) -> list[JsonObject]:
    if given.input is None:
        if given.previous_response_id or given.conversation:
            return []
        raise missing("input")
    if isinstance(given.input, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given.input}]}]
    return given.input


def _without_trigger(items: list[JsonObject]) -> tuple[list[JsonObject], bool]:
    """Return the items without the one that asks for a summary of all before it; and whether it is there."""
    found = next((index for index, item in enumerate(items) if item.get("type") == TRIGGER), None)
    if found is None:
        return items, False
    if found < len(items) - 1:
        message = f"An item of type '{TRIGGER}' is the last one of 'input'."
        raise invalid(message, f"input[{found}].type", "invalid_value")
    return items[:-1], True


def _options(given: _Fields, body: Mapping[str, Any], tools: Tools) -> JsonObject:
    """Convert the fields on sampling, format and tools into those of chat completions."""
    options = {
        **given.sampling,
        **{name: getattr(given, name) for name in _TEXTS},
        "max_tokens": given.max_output_tokens,
        "parallel_tool_calls": given.parallel_tool_calls if tools.are_any else None,
        "tool_choice": tools.choice if tools.are_any else None,
        "reasoning_effort": given.reasoning.effort,
        "reasoning_summary": given.summary,
        "response_format": _response_format(given, body),
        "verbosity": given.text.verbosity,
        "logprobs": True if given.top_logprobs or LOGPROBS in given.include else None,
        "top_logprobs": given.top_logprobs or None,
    }
    return {name: value for name, value in options.items() if value is not None}


def _response_format(given: _Fields, body: Mapping[str, Any]) -> JsonObject | None:
    wanted = given.text.format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "json_object"}
    schema = {key: value for key, value in body["text"]["format"].items() if key != "type"}
    read(_Schema, schema, "text.format")
    return {"type": "json_schema", "json_schema": schema}


def _echo(given: _Fields, body: Mapping[str, Any]) -> JsonObject:
    """Return the fields that the response repeats, with the API's defaults for missing ones.

    ResponseResource of https://www.openresponses.org lists them; none may be missing. Fields without effect here are
    repeated as their effect is: nothing is truncated.
    """
    text = {"format": (body.get("text") or {}).get("format") or {"type": "text"}}
    return {
        **{name: getattr(given, name) or default for name, default in _TEXTS.items()},
        "metadata": given.metadata,
        "parallel_tool_calls": given.parallel_tool_calls is not False,
        **_SAMPLING,
        **given.sampling,
        "max_output_tokens": given.max_output_tokens,
        "reasoning": {"effort": given.reasoning.effort, "summary": given.summary},
        "truncation": "disabled",
        "text": {**text, "verbosity": given.text.verbosity} if given.text.verbosity else text,
        "top_logprobs": given.top_logprobs,
    }


def fresh_body(request: ResponseRequest) -> JsonObject:
    """Return all fields of a response that is only begun."""
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "queued" if request.background else "in_progress",
        "background": request.background,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_tool_calls": request.max_tool_calls,
        "model": request.model,
        "output": [],
        "previous_response_id": request.previous_response_id,
        "store": request.store,
        "tool_choice": request.tools.shown_choice,
        "tools": request.tools.shown,
        "usage": None,
        **({"conversation": {"id": request.conversation}} if request.conversation else {}),
        **request.echo,
    }
