"""Items of a conversation, as messages for the model: what was said, what code ran and what came of it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent_tools.gateway.failures import ApiError, invalid
from agent_tools.messages import ASSISTANT, CALL_ID, FUNCTION, FunctionCall, Message
from agent_tools.models.wire import wire_messages

UNKNOWN_OUTPUT = "(The output of this call is no longer known.)"
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


@dataclass(frozen=True)
class Past:
    """What is known of earlier calls.

    Attributes:
        tool_name: the code interpreter's name towards the model.
        told: what the model was told of a call, by its item's id; None if that is not known.
        file_name: brings an uploaded file into the container and gives its name there.
        put_file: puts a file of this name into the container and gives its name there; None where no code runs.
    """

    tool_name: str
    told: Callable[[str], str | None]
    file_name: Callable[[str], str]
    put_file: Callable[[str, bytes], str] | None


def messages_of_items(items: Iterable[Mapping[str, Any]], past: Past) -> list[dict[str, Any]]:
    """The items as messages of chat completions.

    Raises:
        ApiError: 400, an item is of no kind that can be sent on.
    """
    found: list[Message | dict[str, Any]] = []
    for index, item in enumerate(items):
        found += _messages(item, f"input[{index}]", past)
    return wire_messages(found)


def container_of(items: Iterable[Mapping[str, Any]]) -> str | None:
    """The container that the latest call among the items ran in."""
    named = [item.get("container_id") for item in items if item.get("type") == "code_interpreter_call"]
    return next((each for each in reversed(named) if isinstance(each, str)), None)


def _messages(item: Mapping[str, Any], param: str, past: Past) -> Iterator[Message | dict[str, Any]]:
    match item.get("type", "message"):
        case "message":
            yield _spoken(item, param, past)
        case "function_call":
            call = FunctionCall(_text(item, "name", param), _text(item, "arguments", param))
            yield Message(ASSISTANT, function_call=call, extra={CALL_ID: _text(item, "call_id", param)})
        case "function_call_output":
            output = item.get("output")
            content = output if isinstance(output, str) else _parts_text(output, f"{param}.output")
            yield Message(FUNCTION, content, extra={CALL_ID: _text(item, "call_id", param)})
        case "code_interpreter_call":
            yield from _code_call(item, past)
        case "reasoning":
            return
        case kind:
            raise invalid(f"Items of type {kind!r:.40} are not supported here.", f"{param}.type", "unsupported_value")


def _code_call(item: Mapping[str, Any], past: Past) -> Iterator[Message]:
    id_ = str(item.get("id") or "")
    told = past.told(id_) if id_ else None
    if told is None:
        outputs = [each for each in item.get("outputs") or () if isinstance(each, dict)]
        told = "\n".join(str(each.get("logs", "[image]")) for each in outputs) or UNKNOWN_OUTPUT
    call_id = f"call_{id_[-24:]}"
    arguments = json.dumps({"code": str(item.get("code") or "")}, ensure_ascii=False)
    yield Message(ASSISTANT, function_call=FunctionCall(past.tool_name, arguments), extra={CALL_ID: call_id})
    yield Message(FUNCTION, told, past.tool_name, extra={CALL_ID: call_id})


def _spoken(item: Mapping[str, Any], param: str, past: Past) -> Message | dict[str, Any]:
    role = _ROLES.get(str(item.get("role")))
    if role is None:
        raise invalid(f"Invalid value for '{param}.role'.", f"{param}.role", "invalid_value")
    content = item.get("content")
    if isinstance(content, str):
        return Message(role, content)
    if not isinstance(content, list):
        raise invalid(f"'{param}.content' is neither a string nor an array.", f"{param}.content", "invalid_type")
    parts = [_part(part, f"{param}.content[{number}]", past) for number, part in enumerate(content)]
    if all(part["type"] == "text" for part in parts):
        return Message(role, "".join(part["text"] for part in parts))
    return {"role": role, "content": parts}


def _part(part: Any, param: str, past: Past) -> dict[str, Any]:
    part = part if isinstance(part, dict) else {}
    kind = part.get("type")
    if kind in _TEXT_PARTS:
        return {"type": "text", "text": _text(part, "text", param)}
    if kind == "refusal":
        return {"type": "text", "text": _text(part, "refusal", param)}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": _safe_url(part["image_url"], param)}}
    if kind == "input_file" and isinstance(part.get("file_id"), str):
        return _located(past.file_name(part["file_id"]))
    if kind == "input_file" and isinstance(part.get("file_data"), str):
        return _file(part, param, past)
    raise _unsupported_part(kind, param)


def _file(part: Mapping[str, Any], param: str, past: Past) -> dict[str, Any]:
    """A file that comes with the request: for the code, if any may run, else for the model itself."""
    name, data = str(part.get("filename") or "file"), part["file_data"]
    if past.put_file is None:
        return {"type": "file", "file": {"filename": name, "file_data": data}}
    try:
        content = base64.b64decode(data.rpartition(",")[2], validate=True)
    except ValueError as exc:
        raise invalid(f"'{param}.file_data' is not in base64.", f"{param}.file_data", "invalid_value") from exc
    return _located(past.put_file(name, content))


def _located(name: str) -> dict[str, Any]:
    return {"type": "text", "text": f"[The file is at /mnt/data/{name}]"}


def _unsupported_part(kind: Any, param: str) -> ApiError:
    hint = {
        "input_file": " Give its file_data, or upload it with /v1/files and give its file_id.",
        "input_image": " Give its image_url.",
    }.get(kind, "")
    message = f"Content of type {kind!r:.40} is not supported here in this form.{hint}"
    return invalid(message, f"{param}.type", "unsupported_value")


def _safe_url(url: str, param: str) -> str:
    """A URL that the upstream fetches; never a path on this machine."""
    if url.startswith(("https://", "http://", "data:image/")):
        return url
    raise invalid("An image_url is a http(s) or data URL.", f"{param}.image_url", "invalid_value")


def _parts_text(parts: Any, param: str) -> str:
    if not isinstance(parts, list):
        raise invalid(f"'{param}' is neither a string nor an array.", param, "invalid_type")
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _text(item: Mapping[str, Any], name: str, param: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise invalid(f"Missing required parameter: '{param}.{name}'.", f"{param}.{name}", "missing_required_parameter")
    return value
