"""Messages and tools in the shape of chat completions.

https://platform.openai.com/docs/api-reference/chat/create: an assistant message with `tool_calls` has `content`, and
each of its calls is answered by a `tool` message with that `tool_call_id`. Reasoning is in `reasoning_content`: see
dialect/phrasing.py.
"""

from __future__ import annotations

import base64
import mimetypes
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import cast

from agent_tools.errors import ModelError
from agent_tools.messages import ASSISTANT, FUNCTION, SERVER_FIELDS, TOOL, ContentItem, Message, text_of
from agent_tools.models.base import Conversation, FunctionDefinition, JsonObject, Usage
from agent_tools.models.dialect.phrasing import REASONING
from agent_tools.models.server_fields import REASONING_ITEMS

_URLS = ("http://", "https://", "data:")


def wire_messages(messages: Conversation) -> list[JsonObject]:
    """Convert a conversation into messages of chat completions; dicts are passed on as they are.

    Messages of one reply become one message with all its calls. A call without an id gets one, and the results that
    follow without an id get those of the open calls, in order. Fields of a model's server stand beside the others,
    under `SERVER_FIELDS`: see `with_server_fields`.

    Raises:
        ModelError: an image, audio or video is neither a URL nor a file that can be read.
    """
    wire: list[JsonObject] = []
    unanswered = OrderedDict[str, None]()  # ids of calls whose results have not come
    for is_reply, group in groupby(messages, lambda each: isinstance(each, Message) and each.role == ASSISTANT):
        if is_reply:
            wire.append(_reply(cast("list[Message]", list(group)), len(wire) + 1))
            unanswered = OrderedDict.fromkeys(call["id"] for call in wire[-1].get("tool_calls", ()))
            continue
        for message in group:
            if not isinstance(message, Message):
                wire.append(dict(message))
            elif message.role in (FUNCTION, TOOL):
                wire.append(_result(message, unanswered))
            else:
                wire.append(_plain_message(message))
    return wire


def with_server_fields(messages: Iterable[JsonObject], model: str) -> list[JsonObject]:
    """Return messages of `wire_messages` with the fields of the model's server in their places, not beside them.

    Fields of another model, by the name that they were stored with, are left out; and so are items of reasoning, which
    have no place there.
    """
    return [_with_fields(message, model) if SERVER_FIELDS in message else message for message in messages]


def encrypted_reasoning(message: JsonObject, model: str) -> tuple[list[JsonObject], dict[str, list[JsonObject]]]:
    """Return the model's items of reasoning before a message of `wire_messages`, and before its calls, by their ids."""
    fields = message.get(SERVER_FIELDS)
    if not isinstance(fields, Mapping) or fields.get("model", model) != model:
        return [], {}
    calls = fields.get("calls")
    of_calls = {str(id_): _items_in(of_call) for id_, of_call in calls.items()} if isinstance(calls, Mapping) else {}
    return _items_in(fields.get("message")), of_calls


def _items_in(fields: object) -> list[JsonObject]:
    items = fields.get(REASONING_ITEMS) if isinstance(fields, Mapping) else None
    return [item for item in items if is_encrypted(item)] if isinstance(items, (list, tuple)) else []


def is_encrypted(item: object) -> bool:
    """Return whether an item of a response is reasoning that its server has encrypted."""
    content = item.get("encrypted_content") if isinstance(item, Mapping) and item.get("type") == "reasoning" else None
    return isinstance(content, str) and bool(content)


def wire_tools(functions: Iterable[FunctionDefinition]) -> list[JsonObject]:
    """Convert function definitions into `tools`; a list of parameters becomes a schema."""
    return [{"type": "function", "function": _function(function)} for function in functions]


def wire_usage(usage: Usage) -> JsonObject:
    """Return the usage as an object of chat completions."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _reply(messages: Sequence[Message], number: int) -> JsonObject:
    """Return the messages of one reply as one message; `number` is its place, for the ids of calls without one."""
    first, *more_texts = [message.text for message in messages]
    said = "\n\n".join([first, *filter(None, more_texts)]).lstrip("\n") if any(more_texts) else first
    reply: JsonObject = {"role": ASSISTANT, "content": said}
    if reasoning := "".join(text_of(message.reasoning_content) for message in messages):
        reply[REASONING] = reasoning
    for message in messages:
        more = (message.extra or {}).get(SERVER_FIELDS) or {}
        if more:
            fields = reply.setdefault(SERVER_FIELDS, {})
            fields.update({name: more[name] for name in ("message", "model") if more.get(name)})
        if message.function_call:
            calls = reply.setdefault("tool_calls", [])
            id_ = message.call_id or f"call_{number}_{len(calls)}"
            if more.get("call"):
                reply[SERVER_FIELDS].setdefault("calls", {})[id_] = more["call"]
            function = {"name": message.function_call.name, "arguments": message.function_call.arguments}
            calls.append({"id": id_, "type": "function", "function": function})
    return reply


def _with_fields(message: JsonObject, model: str) -> JsonObject:
    plain = {name: value for name, value in message.items() if name != SERVER_FIELDS}
    fields = message[SERVER_FIELDS]
    if not isinstance(fields, Mapping) or fields.get("model", model) != model:
        return plain
    if isinstance(fields.get("calls"), Mapping) and isinstance(plain.get("tool_calls"), list):
        plain["tool_calls"] = [_call_with(call, fields["calls"]) for call in plain["tool_calls"]]
    return {**_without_items(fields.get("message")), **plain}


def _without_items(fields: object) -> JsonObject:
    given = fields if isinstance(fields, Mapping) else {}
    return {name: value for name, value in given.items() if name != REASONING_ITEMS}


def _call_with(call: object, fields_of: Mapping[str, object]) -> object:
    if not isinstance(call, dict) or not isinstance(call.get("id"), str) or not isinstance(call.get("function"), dict):
        return call  # of a client, which may write anything
    fields = fields_of.get(call["id"])
    if not isinstance(fields, Mapping):
        return call
    of_function = fields.get("function")
    function = {**(of_function if isinstance(of_function, Mapping) else {}), **call["function"]}
    return {**_without_items(fields), **call, "function": function}


def _result(message: Message, unanswered: OrderedDict[str, None]) -> JsonObject:
    id_ = message.call_id or next(iter(unanswered), "call_unknown")
    unanswered.pop(id_, None)
    return {"role": TOOL, "tool_call_id": id_, "content": _result_text(message.items)}


def _result_text(items: Sequence[ContentItem]) -> str:
    """Write a result's content as text, the only content of tool messages; other items are named."""
    named = [isinstance(item.value, str) and not item.value.startswith("data:") for item in items]
    shown = [f"[{item.kind}: {item.value}]" if is_named else f"[{item.kind}]" for item, is_named in zip(items, named)]
    return "".join(item.text if item.text is not None else each for item, each in zip(items, shown))


def _plain_message(message: Message) -> JsonObject:
    named = {"name": message.name} if message.name else {}
    if isinstance(message.content, str) or all(item.kind in ("text", "file") for item in message.content):
        return {"role": message.role, "content": text_of(message.content), **named}
    parts = [_part(item) for item in message.content if item.kind != "file"]
    return {"role": message.role, "content": parts, **named}


def _part(item: ContentItem) -> JsonObject:
    match item.kind:
        case "text":
            return {"type": "text", "text": item.text}
        case "image":
            return {"type": "image_url", "image_url": {"url": _url(item)}}
        case "video":
            return {"type": "video_url", "video_url": {"url": _url(item)}}
        case _:
            mime, data = _url(item).removeprefix("data:").partition(";base64,")[::2]
            return {"type": "input_audio", "input_audio": {"data": data or mime, "format": mime.rpartition("/")[2]}}


def _url(item: ContentItem) -> str:
    value = str(item.value)
    return value if value.startswith(_URLS) else _data_url(value.removeprefix("file://"), item.kind)


def _data_url(path: str, kind: str) -> str:
    mime = mimetypes.guess_type(path)[0] or "application/octet-stream"
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as exc:
        raise ModelError(f"A message's {kind} is neither a URL nor a file that can be read.") from exc
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def _function(function: FunctionDefinition) -> JsonObject:
    parameters = function.get("parameters")
    if isinstance(parameters, list):
        parameters = _schema(parameters)
    return {**function, "parameters": parameters or {"type": "object", "properties": {}}}


def _schema(parameters: list[JsonObject]) -> JsonObject:
    properties = {p["name"]: {k: v for k, v in p.items() if k not in ("name", "required")} for p in parameters}
    return {
        "type": "object",
        "properties": properties,
        "required": [p["name"] for p in parameters if p.get("required")],
    }
