"""A request for a response, checked.

Fields that cannot be honoured are refused; unknown ones are ignored, but for those that an operator passes on.

The fields are those of https://platform.openai.com/docs/api-reference/responses/create.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_tools.gateway.remote_mcp.reach import Reach
from agent_tools.gateway.requests.failures import invalid, missing
from agent_tools.gateway.requests.fields import Fields
from agent_tools.gateway.responses.tools import Tools, Unknown, read_tools
from agent_tools.gateway.store.records import ResponseEnd
from agent_tools.models.base import JsonObject

ENCRYPTED = "reasoning.encrypted_content"
OUTPUTS = "code_interpreter_call.outputs"
LOGPROBS = "message.output_text.logprobs"
DETAILS = "agent_tools.outputs"
"""Ours: outputs as events while the code runs, and in the item their figures as data and the name of an error."""
_SAMPLING = {  # least, most, default
    "temperature": (0, 2, 1.0),
    "top_p": (0, 1, 1.0),
    "presence_penalty": (-2, 2, 0.0),
    "frequency_penalty": (-2, 2, 0.0),
}
_TEXTS = {
    "prompt_cache_key": None,
    "safety_identifier": None,
    "service_tier": "default",
    "user": None,
}
_SENT = ("prompt_cache_key", "safety_identifier", "service_tier", "user")
"""Fields of the same name and meaning in chat completions."""
_INNER = {
    "reasoning": ("effort", "summary", "generate_summary"),
    "text": ("format", "verbosity"),
    "stream_options": ("include_obfuscation", "include_usage"),
}
_KNOWN = frozenset(
    (
        *("model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "max_tool_calls", "include"),
        *("previous_response_id", "conversation", "context_management", "store", "stream", "background", "metadata"),
        *("max_output_tokens", "truncation", "top_logprobs", "prompt", *_INNER, *_SAMPLING, *_TEXTS),
    )
)
"""Fields that are read here."""
MIN_THRESHOLD = 1_000  # tokens
_SUMMARIES = ("auto", "concise", "detailed")
_IN_VAIN = (
    *("file_search_call.results", "web_search_call.results", "web_search_call.action.sources"),
    *("message.input_image.image_url", "computer_call_output.output.image_url"),
)
"""Parts that may be asked for, and are of tools that are not here."""
_INCLUDABLE = frozenset((*_IN_VAIN, OUTPUTS, LOGPROBS, DETAILS, ENCRYPTED))


@dataclass(frozen=True)
class Request:
    """A checked request. `options` are fields of chat completions; the response repeats `echo`.

    Attributes:
        recent: the response before, where the client's connection has it and the store need not be asked.
        is_padded: the deltas of the stream are padded.
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
    store: bool = True
    stream: bool = False
    background: bool = False
    is_padded: bool = False
    recent: ResponseEnd | None = None
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
        """The outputs of code are shown while it runs, and with more than OpenAI's fields."""
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
    reach: Reach | None = None,
) -> Request:
    """Check a request. Tools that are not here are refused or left out; fields that `passed` names are sent on.

    `reach` are the MCP servers that it may name.

    Raises:
        ApiError: 400; `param` names the field.
    """
    given = Fields(body)
    _refuse_unsupported(given)
    tools = read_tools(given, unknown_tools, reach)
    include = _include(given)
    background, store = bool(given.flag("background")), given.flag("store")
    if background and store is False:
        raise invalid("A response in the background needs 'store' to be true.", "background")
    return Request(
        model=given.needed("model"),
        input=_input(given),
        tools=tools,
        instructions=given.text("instructions"),
        include=include,
        previous_response_id=given.text("previous_response_id"),
        conversation=_conversation(given),
        max_tool_calls=given.integer("max_tool_calls", 1),
        compact_threshold=_compact_threshold(given),
        store=store is not False,
        stream=bool(given.flag("stream")),
        background=background,
        is_padded=bool(Fields(given.object("stream_options") or {}, "stream_options").flag("include_obfuscation")),
        ignored=tuple(_ignored(body, passed)),
        options={**_options(given, tools, include), **_passed(body, passed)},
        echo=_echo(given),
    )


def _ignored(body: Mapping[str, Any], passed: Sequence[str]) -> Iterator[str]:
    """Yield the names of fields that have no meaning here and are not sent on."""
    yield from (name for name in body if body[name] is not None and name not in _KNOWN and name not in passed)
    yield from (f"include.{name}" for name in body.get("include") or () if name in _IN_VAIN)
    if body.get("truncation") == "auto":
        yield "truncation"
    for outer, known in _INNER.items():
        inner = body.get(outer)
        yield from (f"{outer}.{name}" for name in (inner if isinstance(inner, dict) else ()) if name not in known)


def _refuse_unsupported(given: Fields) -> None:
    if given.given.get("prompt") is not None:
        raise invalid("'prompt' is not supported here.", "prompt", "unsupported_parameter")


def _compact_threshold(given: Fields) -> int | None:
    """Return the tokens above which the conversation is summed up before the model is asked."""
    found = None
    for index, each in enumerate(given.array("context_management")):
        rule = Fields(each if isinstance(each, dict) else {}, f"context_management[{index}]")
        if rule.needed("type") != "compaction":
            raise invalid("Invalid value: expected 'compaction'.", rule.param("type"), "invalid_value")
        found = rule.integer("compact_threshold", MIN_THRESHOLD)
        if found is None:
            raise missing(rule.param("compact_threshold"))
    return found


def _conversation(given: Fields) -> str | None:
    """Return the id of the conversation that the response is added to: a string, or an object with it."""
    value = given.given.get("conversation")
    if value is None:
        return None
    if given.given.get("previous_response_id") is not None:
        message = "Give 'previous_response_id' or 'conversation', not both: each says what was said before."
        raise invalid(message, "conversation", "mutually_exclusive_parameters")
    if isinstance(value, str):
        return given.needed("conversation")
    if not isinstance(value, dict):
        raise given.wrong("conversation", "a string or an object")
    return Fields(value, "conversation").needed("id")


def _input(given: Fields) -> list[JsonObject]:
    value = given.given.get("input")
    if value is None:
        if given.given.get("previous_response_id") or given.given.get("conversation"):
            return []
        raise missing("input")
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": value}]}]
    if not isinstance(value, list):
        raise given.wrong("input", "a string or an array")
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise invalid(f"Invalid type for 'input[{index}]': expected an object.", f"input[{index}]", "invalid_type")
    return value


def _include(given: Fields) -> frozenset[str]:
    for index, name in enumerate(given.array("include")):
        if not isinstance(name, str) or name not in _INCLUDABLE:
            raise invalid(f"Invalid value: {name!r:.60}.", f"include[{index}]", "invalid_value")
    return frozenset(given.array("include"))


def _passed(body: Mapping[str, Any], names: Sequence[str]) -> JsonObject:
    return {name: body[name] for name in names if body.get(name) is not None}


def _options(given: Fields, tools: Tools, include: frozenset[str]) -> JsonObject:
    """Convert the fields on sampling, format and tools into those of chat completions."""
    top_logprobs = given.integer("top_logprobs", 0, 20)
    reasoning = given.object("reasoning") or {}
    options = {
        **_sampling(given),
        **{name: given.text(name) for name in _SENT},
        "max_tokens": given.integer("max_output_tokens", 1),
        "parallel_tool_calls": given.flag("parallel_tool_calls") if tools.are_any else None,
        "tool_choice": tools.choice if tools.are_any else None,
        "reasoning_effort": reasoning.get("effort"),
        "reasoning_summary": _summary(reasoning),
        "response_format": _response_format(given),
        "verbosity": Fields(given.object("text") or {}, "text").text("verbosity"),
        "logprobs": True if top_logprobs or LOGPROBS in include else None,
        "top_logprobs": top_logprobs or None,
    }
    return {name: value for name, value in options.items() if value is not None}


def _response_format(given: Fields) -> JsonObject | None:
    text = Fields(given.object("text") or {}, "text")
    wanted = text.object("format") or {}
    match wanted.get("type", "text"):
        case "text":
            return None
        case "json_object":
            return {"type": "json_object"}
        case "json_schema":
            schema = {key: value for key, value in wanted.items() if key != "type"}
            form = Fields(schema, "text.format")
            form.needed("name")
            if form.object("schema") is None:
                raise missing(form.param("schema"))
            return {"type": "json_schema", "json_schema": schema}
        case _:
            raise invalid("Invalid value for 'text.format.type'.", "text.format.type", "invalid_value")


def _echo(given: Fields) -> JsonObject:
    """Return the fields that the response repeats, with the API's defaults for missing ones.

    ResponseResource of https://www.openresponses.org lists them; none may be missing. What is asked for in vain is
    repeated as it is: nothing is truncated.
    """
    given.choice("truncation", ("auto", "disabled"))
    reasoning = given.object("reasoning") or {}
    text = given.object("text") or {}
    echo: JsonObject = {
        "metadata": given.notes("metadata"),
        "parallel_tool_calls": given.flag("parallel_tool_calls") is not False,
        **{name: default for name, (_, _, default) in _SAMPLING.items()},
        **_sampling(given),
        "max_output_tokens": given.integer("max_output_tokens", 1),
        "reasoning": {"effort": reasoning.get("effort"), "summary": _summary(reasoning)},
        "truncation": "disabled",
        "text": {"format": text.get("format") or {"type": "text"}},
        "top_logprobs": given.integer("top_logprobs", 0, 20) or 0,
    }
    if text.get("verbosity"):
        echo["text"]["verbosity"] = text["verbosity"]
    return {**{name: given.text(name) or default for name, default in _TEXTS.items()}, **echo}


def _summary(reasoning: Mapping[str, Any]) -> str | None:
    """Return the kind of summary that is asked for; `generate_summary` is its old name."""
    given = Fields(reasoning, "reasoning")
    name = "summary" if given.given.get("summary") is not None else "generate_summary"
    return given.choice(name, _SUMMARIES)


def _sampling(given: Fields) -> dict[str, float]:
    values = {name: given.number(name, least, most) for name, (least, most, _) in _SAMPLING.items()}
    return {name: value for name, value in values.items() if value is not None}
