"""Converts items of a conversation into messages for the model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent_tools.gateway.requests.api_errors import ApiError, invalid
from agent_tools.gateway.requests.fields import Objects, RequestModel, read
from agent_tools.gateway.responses.approvals import asked, executed, read_decisions
from agent_tools.gateway.responses.client_tools import TOOL_SEARCH, arguments_of_text, name_for_model
from agent_tools.gateway.responses.input_pictures import picture_part
from agent_tools.gateway.responses.mcp_names import model_name
from agent_tools.gateway.responses.shell_items import shell_answer, shell_arguments
from agent_tools.gateway.responses.summary_item import first_kept, read_summary, summary_message
from agent_tools.gateway.tools.patch import PATCH_NAME, patch_arguments
from agent_tools.messages import ASSISTANT, CALL_ID, FUNCTION, SERVER_FIELDS, SYSTEM, FunctionCall, Message
from agent_tools.models.base import Json, JsonObject
from agent_tools.models.dialect.phrasing import REASONING
from agent_tools.models.server_fields import SERVER_FIELDS_KNOWN
from agent_tools.models.wire import wire_messages
from agent_tools.results.blocks import NOTHING

_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_BELOW, _SHOWN = "(The output is shown below.)", "(Shown by the calls above:)"
UNKNOWN_OUTPUT = "(The output of this call is no longer known.)"
_NOT_GIVEN = "(No output of this call was given.)"
_NO_CALL = "(The output of a call that is not part of the conversation:)"
NEW_TOOLS = "Tools that can be called now"  # of an item: the model reads their names after it
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_MADE = frozenset(  # by the model
    (
        *("code_interpreter_call", "custom_tool_call", "function_call", "reasoning", "shell_call", "apply_patch_call"),
        *("mcp_call", "mcp_approval_request", "compaction", "tool_search_call"),
    )
)
_OF_TOOLS = (
    *("shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output"),
    *("tool_search_call", "tool_search_output", "additional_tools"),
)
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


class _Names(RequestModel):
    type: str = ""
    id: str = ""
    approval_request_id: str = ""


class _Thought(RequestModel):
    encrypted_content: str = ""


class _Found(RequestModel):
    tools: Objects


class _Patch(RequestModel):
    operation: dict[str, Any] = {}
    output: str = ""


@dataclass(frozen=True)
class CallHistory:
    """The stored facts about earlier calls.

    Attributes:
        tool_name: the code interpreter's name for the model.
        shell_name: the shell's.
        tool_answer: returns the model's answer to a call, by the id of its item or of its output's; None if unknown.
        file_part: returns a file's part for the model, from its part, its path in the request, and whether it is new.
        server_fields: returns the fields of an item that only its model's server knows, with the model's name; None
            for an item without any.
        opened: returns the text of encrypted content, which is at a path in the request.
        is_over: the item that is read was answered in an earlier turn.
        executed: the requests for approval whose calls were made.
        asked: all of them that are among the items.
    """

    tool_name: str
    shell_name: str
    tool_answer: Callable[[str], str | None]
    file_part: Callable[[Mapping[str, Any], str, bool], JsonObject]
    opened: Callable[[str, str], str]
    server_fields: Callable[[Mapping[str, Any]], Json | None] = lambda _: None
    is_over: bool = False
    executed: frozenset[str] = frozenset()
    asked: frozenset[str] = frozenset()


def messages_of_items(items: Sequence[Mapping[str, Any]], past: CallHistory, path: str = "input") -> list[JsonObject]:
    """Convert items into messages of chat completions; errors name them by the path of their list.

    A compaction stands for all items before it.

    Raises:
        ApiError: 400, an item's type is not supported.
    """
    _check_names(items, path)
    found: list[Message | JsonObject] = []
    seen: list[JsonObject] = []  # pictures among the outputs of calls, which only a person's message can hold
    new, kinds = _first_new(items), {str(item.get("type")) for item in items}
    if "mcp_approval_response" in kinds or "mcp_approval_request" in kinds:
        past = replace(past, executed=executed(items), asked=asked(items))
    kept = first_kept(items) if "compaction" in kinds else 0
    for index, item in enumerate(items[kept:], kept):
        param, here = f"{path}[{index}]", replace(past, is_over=index < new)
        if item.get("type") in _OUTPUTS:
            message, pictures = _output(item, param, here)
            found.append(message)
            seen += pictures
            continue
        found += [*_shown(seen), *_with_server_fields(_messages(item, param, here), item, past)]
        seen = []
    return [message for message in wire_messages([*found, *_shown(seen)]) if not _is_lone_thought(message)]


def _check_names(items: Sequence[Mapping[str, Any]], path: str) -> None:
    """Check that the names in all items are texts."""
    if not {str, type(None)}.issuperset(type(item.get(name)) for name in _Names.model_fields for item in items):
        for index, item in enumerate(items):
            read(_Names, item, f"{path}[{index}]")


def check_outputs(items: Sequence[Mapping[str, Any]], before: Iterable[JsonObject]) -> None:
    """Check that each output of a client's tool belongs to a call, of the items or of the messages before them."""
    called = {str(item.get("call_id")) for item in items if item.get("type") in _CALLS}
    called |= {call["id"] for message in before for call in message.get("tool_calls") or ()}
    for index, item in enumerate(items):
        call_id = str(item.get("call_id"))
        if item.get("type") in _OUTPUTS and call_id not in called:
            message = f"No tool call found for function call output with call_id {call_id[:80]}."
            raise invalid(message, f"input[{index}].call_id", "invalid_value")


def answered(messages: Iterable[JsonObject]) -> list[JsonObject]:
    """Return messages in which each call is followed by its result, as servers want it.

    A result that comes later is moved to its call. A call without a result is answered by a sentence that says so; a
    result without a call becomes a message of the user.
    """
    all_messages = list(messages)
    latest: dict[str, int] = {}  # the places of calls without a result, by their ids, which may come again
    results: dict[tuple[int, str], JsonObject] = {}
    placed = set()
    for place, message in enumerate(all_messages):
        latest.update(dict.fromkeys(_calls_of(message), place))
        id_ = str(message.get("tool_call_id"))
        if message.get("role") == "tool" and id_ in latest:
            results[latest.pop(id_), id_] = message
            placed.add(place)
    rewritten: list[JsonObject] = []
    for place, message in enumerate(all_messages):
        if message.get("role") == "tool":
            if place not in placed:
                rewritten.append({"role": "user", "content": f"{_NO_CALL}\n{message.get('content')}"})
            continue
        rewritten.append(message)
        for call in _calls_of(message):
            nothing = {"role": "tool", "tool_call_id": call, "content": _NOT_GIVEN}
            rewritten.append(results.get((place, call), nothing))
    return rewritten


def _calls_of(message: Mapping[str, Any]) -> list[str]:
    """Return the ids of a message's calls, each once."""
    return list(dict.fromkeys(str(call["id"]) for call in message.get("tool_calls") or ()))


def _thought(item: Mapping[str, Any], param: str, past: CallHistory) -> str:
    """Return a reasoning item's text: that in its encrypted content, else its content, or its summary."""
    if sealed := read(_Thought, item, param).encrypted_content:
        return past.opened(sealed, f"{param}.encrypted_content")
    content = item.get("content") or item.get("summary")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return "".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def _is_lone_thought(message: JsonObject) -> bool:
    """Return whether a message is reasoning without an answer or calls, which no server accepts."""
    return bool(message.get(REASONING)) and not message.get("content") and not message.get("tool_calls")


def container_of(items: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the container that the latest call among the items ran in."""
    named = [_place_of(item).get("container_id") for item in items]
    return next((each for each in reversed(named) if isinstance(each, str)), None)


def _place_of(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of an item that may name its container."""
    if item.get("type") == "shell_call":
        environment = item.get("environment")
        return environment if isinstance(environment, dict) else {}
    return item if item.get("type") == "code_interpreter_call" else {}


def _first_new(items: Sequence[Mapping[str, Any]]) -> int:
    """Return the index after the last item that the model made."""
    made = [n for n, item in enumerate(items) if item.get("type") in _MADE or item.get("role") == "assistant"]
    return made[-1] + 1 if made else 0


def _messages(item: Mapping[str, Any], param: str, past: CallHistory) -> Iterator[Message | JsonObject]:
    match item.get("type") or "message":
        case "message":
            yield _spoken(item, param, past)
        case "function_call" | "custom_tool_call" as kind:
            name, is_custom = _text(item, "name", param), kind == "custom_tool_call"
            given = arguments_of_text(_text(item, "input", param)) if is_custom else _text(item, "arguments", param)
            call = FunctionCall(name_for_model(name, item.get("namespace")), given)
            yield Message(ASSISTANT, function_call=call, extra={CALL_ID: _text(item, "call_id", param)})
        case "code_interpreter_call":
            yield from _code_call(item, past)
        case kind if kind in _OF_TOOLS:
            yield from _of_tool(kind, item, param, past)
        case "mcp_call" | "mcp_approval_request" | "mcp_list_tools" | "mcp_approval_response" as kind:
            yield from _of_server(kind, item, param, past)
        case "compaction":
            yield summary_message(read_summary(item, param))
        case "reasoning":
            if thought := _thought(item, param, past):
                yield Message(ASSISTANT, reasoning_content=thought)
        case kind:
            raise invalid(f"Items of type {kind!r:.40} are not supported here.", f"{param}.type", "unsupported_value")


def _with_server_fields(
    messages: Iterable[Message | JsonObject], item: Mapping[str, Any], past: CallHistory
) -> Iterator[Message | JsonObject]:
    """Add the fields of the model's server to its first message, beside the client's own."""
    own = {name: item[name] for name in SERVER_FIELDS_KNOWN if item.get(name)}
    holder = "call" if item.get("type") in ("function_call", "custom_tool_call") else "message"
    fields = {holder: own} if own else past.server_fields(item)
    for message in messages:
        if fields and isinstance(message, Message) and message.role == ASSISTANT:
            message = replace(message, extra={**(message.extra or {}), SERVER_FIELDS: fields})
            fields = None
        yield message


def _of_tool(kind: str, item: Mapping[str, Any], param: str, past: CallHistory) -> Iterator[Message]:
    if kind.startswith("shell"):
        yield _of_shell(kind, item, param, past)
    elif kind.startswith("apply_patch"):
        yield _of_patch(kind, item, param)
    elif kind == "additional_tools":
        yield Message(SYSTEM, _new_tools(item, param))
    else:
        yield _of_search(kind, item, param)


def _of_shell(kind: str, item: Mapping[str, Any], param: str, past: CallHistory) -> Message:
    call_id = {CALL_ID: _text(item, "call_id", param)}
    if kind == "shell_call":
        call = FunctionCall(past.shell_name, shell_arguments(item, param))
        return Message(ASSISTANT, function_call=call, extra=call_id)
    tool_answer = past.tool_answer(str(item.get("id") or "")) or shell_answer(item, param)
    return Message(FUNCTION, tool_answer, past.shell_name, extra=call_id)


def _of_patch(kind: str, item: Mapping[str, Any], param: str) -> Message:
    given, call_id = read(_Patch, item, param), {CALL_ID: _text(item, "call_id", param)}
    if kind == "apply_patch_call":
        call = FunctionCall(PATCH_NAME, patch_arguments(given.operation))
        return Message(ASSISTANT, function_call=call, extra=call_id)
    tool_answer = given.output or f"status: {item.get('status')!s:.20}"
    return Message(FUNCTION, tool_answer, PATCH_NAME, extra=call_id)


def _of_search(kind: str, item: Mapping[str, Any], param: str) -> Message:
    """Return a search for tools, or what it found; the tools are offered with all others."""
    call_id = {CALL_ID: str(item.get("call_id") or "") or _text(item, "id", param)}
    if kind == "tool_search_call":
        arguments = json.dumps(item.get("arguments") or {}, ensure_ascii=False)
        return Message(ASSISTANT, function_call=FunctionCall(TOOL_SEARCH, arguments), extra=call_id)
    return Message(FUNCTION, _new_tools(item, param), TOOL_SEARCH, extra=call_id)


def _new_tools(item: Mapping[str, Any], param: str) -> str:
    """Return the names of tools that an item brings; they are offered with all others, see tools.py."""
    names = ", ".join(str(tool.get("name")) for tool in read(_Found, item, param).tools)
    return f"{NEW_TOOLS}: {names or 'none'}."


def _output(item: Mapping[str, Any], param: str, past: CallHistory) -> tuple[Message, list[JsonObject]]:
    """Return the output of a client's tool: its text for the model, and its pictures."""
    output = item.get("output")
    text, pictures = (output, []) if isinstance(output, str) else _output_parts(output, f"{param}.output", past)
    return Message(FUNCTION, text, extra={CALL_ID: _text(item, "call_id", param)}), pictures


def _output_parts(output: Any, param: str, past: CallHistory) -> tuple[str, list[JsonObject]]:
    if not isinstance(output, list):
        raise invalid(f"'{param}' is neither a string nor an array.", param, "invalid_type")
    parts = [_part(part, f"{param}[{number}]", past) for number, part in enumerate(output)]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    others = [part for part in parts if part["type"] != "text"]
    return "".join(texts) or _BELOW * bool(others), others


def _shown(parts: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Yield the message that shows the model pictures of its calls, if there are any."""
    if parts:
        yield {"role": "user", "content": [{"type": "text", "text": _SHOWN}, *parts]}


def _code_call(item: Mapping[str, Any], past: CallHistory) -> Iterator[Message]:
    id_ = str(item.get("id") or "")
    tool_answer = past.tool_answer(id_) if id_ else None
    if tool_answer is None:
        given = item.get("outputs")
        outputs = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
        nothing = NOTHING if given == [] else UNKNOWN_OUTPUT
        tool_answer = "\n".join(str(each.get("logs", "[image]")) for each in outputs) or nothing
    call_id = f"call_{id_[-24:]}"
    arguments = json.dumps({"code": str(item.get("code") or "")}, ensure_ascii=False)
    yield Message(ASSISTANT, function_call=FunctionCall(past.tool_name, arguments), extra={CALL_ID: call_id})
    yield Message(FUNCTION, tool_answer, past.tool_name, extra={CALL_ID: call_id})


def _of_server(kind: str, item: Mapping[str, Any], param: str, past: CallHistory) -> Iterator[Message]:
    """Yield the calls of an MCP server's tools, and their results.

    Lists of tools are asked for anew. Approved calls are made before the model is asked; a call that the user
    rejected in an earlier turn is answered here.
    """
    request_id = item.get("approval_request_id")
    if kind == "mcp_approval_response" and request_id in past.asked and request_id not in past.executed:
        for decision, _ in read_decisions([item]):
            if not decision.is_approved:
                yield Message(FUNCTION, decision.refusal, extra={CALL_ID: decision.request_id})
    if kind == "mcp_approval_request" and item.get("id") not in past.executed:
        yield _asked(item, param)
    if kind == "mcp_call":
        error = item.get("error")
        tool_answer = error.get("content", error.get("message")) if isinstance(error, dict) else error
        output = item.get("output")
        if not output and tool_answer:
            output = f"The tool failed: {tool_answer}"
        yield _asked(item, param)
        yield Message(
            FUNCTION, UNKNOWN_OUTPUT if output is None else str(output), extra={CALL_ID: _text(item, "id", param)}
        )


def _asked(item: Mapping[str, Any], param: str) -> Message:
    name = model_name(_text(item, "server_label", param), _text(item, "name", param))
    call = FunctionCall(name, _text(item, "arguments", param))
    return Message(ASSISTANT, function_call=call, extra={CALL_ID: _text(item, "id", param)})


def _spoken(item: Mapping[str, Any], param: str, past: CallHistory) -> Message | JsonObject:
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


def _part(part: Any, param: str, past: CallHistory) -> JsonObject:
    part = part if isinstance(part, dict) else {}
    kind = part.get("type")
    if kind in _TEXT_PARTS:
        return {"type": "text", "text": _text(part, "text", param)}
    if kind == "refusal":
        return {"type": "text", "text": _text(part, "refusal", param)}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        return picture_part(_safe_url(part["image_url"], param), part, param)
    if kind == "input_file" or (kind == "input_image" and isinstance(part.get("file_id"), str)):
        return past.file_part(part, param, not past.is_over)
    raise _unsupported_part(kind, param)


def _unsupported_part(kind: Any, param: str) -> ApiError:
    hint = " Give its image_url or file_id." if kind == "input_image" else ""
    message = f"Content of type {kind!r:.40} is not supported here in this form.{hint}"
    return invalid(message, f"{param}.type", "unsupported_value")


def _safe_url(url: str, param: str) -> str:
    """Check that a URL is one that the upstream fetches, never a path on this machine."""
    if url.startswith(("https://", "http://", "data:image/")):
        return url
    raise invalid("An image_url is a http(s) or data URL.", f"{param}.image_url", "invalid_value")


def _text(item: Mapping[str, Any], name: str, param: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise invalid(f"Missing required parameter: '{param}.{name}'.", f"{param}.{name}", "missing_required_parameter")
    return value
