"""A request of Anthropic's Messages API, checked, in the shape of chat completions. Pure.

The fields are those of https://platform.claude.com/docs/en/api/messages/create. Unknown fields are ignored; unknown
blocks and tools are errors, since a model that does not see them would answer another question.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union

from pydantic import FailFast, Field

from agent_tools.gateway.requests.api_errors import ApiError, code_execution_refused, invalid
from agent_tools.gateway.requests.container_fields import Needed, Unsupported
from agent_tools.gateway.requests.fields import ARRAY, TEXT, Count, Objects, RequestModel, by_shape, read
from agent_tools.models.base import FunctionDefinition, JsonObject
from agent_tools.models.dialect.phrasing import REASONING

_Content = Annotated[Union[Annotated[str, TEXT], Annotated[Objects, ARRAY]], by_shape("a string or an array of blocks")]
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_SAME = ("max_tokens", "temperature", "top_p", "top_k")
"""Fields of the same name and meaning in chat completions, or in many of its servers."""
_PARTS = ("text", "image", "document")


@dataclass(frozen=True)
class MessagesRequest:
    """A checked request. `messages`, `functions` and `options` are those of chat completions."""

    model: str
    messages: list[JsonObject]
    functions: tuple[FunctionDefinition, ...]
    options: JsonObject
    stream: bool
    shows_thinking: bool  # the model's reasoning is sent as blocks of thinking


class _Message(RequestModel):
    role: Literal["user", "assistant", "system"]
    content: _Content


class _Tool(RequestModel):
    type: str = "custom"
    name: Needed
    description: str = ""
    input_schema: dict[str, Any] = {}


class _Choice(RequestModel):
    type: Literal["auto", "any", "none", "tool"] = "auto"
    name: str = ""
    disable_parallel_tool_use: bool = False


class _Fields(RequestModel):
    model: Needed
    messages: Annotated[Objects, Field(min_length=1)]
    system: _Content = ""
    tools: Objects = []
    max_tokens: Count
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: int | None = None
    stop_sequences: Annotated[list[str], FailFast()] = []
    stream: bool = False
    tool_choice: _Choice | None = None
    thinking: dict[str, Any] = {}
    mcp_servers: Unsupported = None
    container: Unsupported = None


def read_messages_request(body: Mapping[str, Any], *, ignores_tools: bool) -> MessagesRequest:
    """Check a request; `ignores_tools` leaves out tools that are not functions of the client.

    Raises:
        ApiError: 400; `param` names the field.
    """
    given = read(_Fields, body)
    system = _text(given.system, "system")
    messages: list[JsonObject] = [{"role": "system", "content": system}] if system else []
    for path, each in _placed(given.messages, "messages"):
        messages += _converted(read(_Message, each, path), f"{path}.content")
    functions = tuple(_functions(given.tools, ignores_tools=ignores_tools))
    options = dict(_options(given, {each["name"] for each in functions}))
    shows_thinking = given.thinking.get("type", "disabled") != "disabled"
    return MessagesRequest(given.model, messages, functions, options, given.stream, shows_thinking)


def _options(given: _Fields, names: set[str]) -> Iterator[tuple[str, Any]]:
    yield from ((name, getattr(given, name)) for name in _SAME if getattr(given, name) is not None)
    if given.stop_sequences:
        yield "stop", given.stop_sequences
    if choice := given.tool_choice:
        if choice.type == "tool" and choice.name not in names:
            raise invalid("'tool_choice' names a tool that is not in 'tools'.", "tool_choice.name", "invalid_value")
        named = {"type": "function", "function": {"name": choice.name}}
        yield from [("tool_choice", _CHOICES.get(choice.type, named))] if names else []
        yield from [("parallel_tool_calls", False)] if names and choice.disable_parallel_tool_use else []


def _functions(tools: list[JsonObject], *, ignores_tools: bool) -> Iterator[FunctionDefinition]:
    for path, each in _placed(tools, "tools"):
        kind = each.get("type") or "custom"
        if str(kind).startswith("code_execution"):
            raise code_execution_refused(str(kind))
        if kind == "custom":
            tool = read(_Tool, each, path)
            yield {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
        elif not ignores_tools:
            ignore = "The operator can have others ignored: --set unknown_tools=ignore."
            message = f"Tools of type {kind!r:.60} are not supported here: give a tool with an 'input_schema'. {ignore}"
            raise invalid(message, f"{path}.type", "unsupported_value")


class _Source(RequestModel):
    type: Literal["base64", "url", "text"]
    media_type: str = ""
    data: str = ""
    url: str = ""


class _TextBlock(RequestModel):
    text: str


class _MediaBlock(RequestModel):
    source: _Source
    title: str = ""


class _Use(RequestModel):
    id: Needed
    name: Needed
    input: dict[str, Any] = {}


class _Result(RequestModel):
    tool_use_id: Needed
    content: _Content = ""
    is_error: bool = False


def _converted(message: _Message, path: str) -> list[JsonObject]:
    if isinstance(message.content, str) or message.role == "system":
        return [{"role": message.role, "content": _text(message.content, path)}]
    if message.role == "assistant":
        return [_answer(message.content, path)]
    results, parts = list[JsonObject](), list[JsonObject]()
    for where, block in _placed(message.content, path):
        is_result = block.get("type") == "tool_result"
        answers, shown = _result(read(_Result, block, where), where) if is_result else ([], [_part(block, where)])
        results += answers
        parts += shown
    is_text = all(part["type"] == "text" for part in parts)  # one text is what all servers take
    content = "\n\n".join(part["text"] for part in parts) if is_text else parts
    return [*results, {"role": "user", "content": content}] if parts else results


def _answer(content: list[dict[str, Any]], path: str) -> JsonObject:
    """Return a message of the model: its text, its reasoning and its calls."""
    texts, thoughts, calls = list[str](), list[str](), list[JsonObject]()
    for where, block in _placed(content, path):
        match block.get("type"):
            case "text":
                texts.append(read(_TextBlock, block, where).text)
            case "thinking" | "redacted_thinking":
                thoughts.append(str(block.get("thinking") or ""))
            case "tool_use":
                use = read(_Use, block, where)
                function = {"name": use.name, "arguments": json.dumps(use.input, ensure_ascii=False)}
                calls.append({"id": use.id, "type": "function", "function": function})
            case kind:
                raise _unknown(kind, where)
    message = {"role": "assistant", "content": "\n\n".join(texts)}
    more = {REASONING: "".join(thoughts), "tool_calls": calls}
    return {**message, **{name: value for name, value in more.items() if value}}


def _result(result: _Result, path: str) -> tuple[list[JsonObject], list[JsonObject]]:
    """Return the answer to a call, and its pictures, which only a message of the user can have."""
    blocks = [{"type": "text", "text": result.content}] if isinstance(result.content, str) else result.content
    texts, pictures = list[str](), list[JsonObject]()
    for where, block in _placed(blocks, f"{path}.content"):
        kind = block.get("type")
        part = _part(block, where) if kind in _PARTS else {"type": "text", "text": f"[{kind}]"[:100]}
        texts.append(part["text"] if part["type"] == "text" else f"[{kind}: see the next message]")
        pictures += [part] if part["type"] != "text" else []
    text = "\n".join(texts)
    text = f"Error: {text}" if result.is_error and not text.lower().startswith("error") else text
    return [{"role": "tool", "tool_call_id": result.tool_use_id, "content": text}], pictures


def _part(block: dict[str, Any], path: str) -> JsonObject:
    """Return a block of the user as a part of a message."""
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": read(_TextBlock, block, path).text}
    if kind not in _PARTS:
        raise _unknown(kind, path)
    media = read(_MediaBlock, block, path)
    source = media.source
    data = f"data:{source.media_type};base64,{source.data}"
    match kind, source.type:
        case "document", "text":
            return {"type": "text", "text": "\n\n".join(filter(None, [media.title, source.data]))}
        case "image", "base64" | "url":
            return {"type": "image_url", "image_url": {"url": data if source.type == "base64" else source.url}}
        case "document", "base64":
            return {"type": "file", "file": {"filename": media.title or "document", "file_data": data}}
    message = f"A {kind} of a source of type {source.type!r} is not supported here: send its data as 'base64'."
    raise invalid(message, f"{path}.source.type", "unsupported_value")


def _text(content: str | list[dict[str, Any]], path: str) -> str:
    """Return content that has only text."""
    if isinstance(content, str):
        return content
    parts = {where: _part(block, where) for where, block in _placed(content, path)}
    if other := [where for where, part in parts.items() if part["type"] != "text"]:
        raise invalid("Only blocks of type 'text' are possible here.", f"{other[0]}.type", "unsupported_value")
    return "\n\n".join(part["text"] for part in parts.values())


def _placed(blocks: list[dict[str, Any]], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    return ((f"{path}[{index}]", block) for index, block in enumerate(blocks))


def _unknown(kind: object, path: str) -> ApiError:
    message = f"Blocks of type {kind!r:.60} are not supported here, before an upstream without /v1/messages."
    return invalid(message, f"{path}.type", "unsupported_value")
