"""A request for a chat completion, read if its code is run here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.requests.api_errors import ApiError, invalid
from agent_tools.gateway.requests.container_fields import Needed
from agent_tools.gateway.requests.fields import RequestModel, read
from agent_tools.gateway.responses.client_tools import MAX_TOOLS
from agent_tools.models.base import JsonObject

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


class _Auto(RequestModel):
    memory_limit: str | None = None


class _Function(RequestModel):
    parameters: dict[str, Any] | None = None


class _StreamOptions(RequestModel):
    include_usage: Any = None


class _Chat(RequestModel):
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
    chat = read(_Chat, body)
    if len(chat.tools) > MAX_TOOLS:
        raise invalid(f"There are more than {MAX_TOOLS} tools.", "tools", "invalid_value")
    for index, tool in enumerate(chat.tools):
        if _is_function(tool):
            read(_Function, tool["function"], f"tools[{index}].function")
        elif config.unknown_tools == "refuse" and not _is_built_in(tool):
            raise _unknown(tool, f"tools[{index}].type")
    if {} in ours and any(function["name"] == config.tool_name for function in declared):
        raise invalid(f"A function cannot be called {config.tool_name!r} beside the code interpreter.", "tools")
    if chat.n != 1:
        raise invalid("Only one choice is possible when the gateway runs code: set 'n' to 1.", "n", "unsupported_value")
    if not chat.messages or not all(isinstance(message, dict) for message in chat.messages):
        raise invalid("'messages' is an array of one or more objects.", "messages")
    container_id, memory = _container(chat.tools) if {} in ours else ("", None)
    return ChatRequest(
        model=chat.model,
        messages=chat.messages,
        ours=ours,
        others=tuple(function for function in declared if function["name"] not in config.router_tools),
        options=_options(body, config.tool_name),
        stream=chat.stream,
        with_usage=bool(chat.stream_options.include_usage),
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
