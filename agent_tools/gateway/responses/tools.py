"""The tools of a request: the code interpreter with its container, the client's functions, and the choice of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agent_tools.gateway.requests.container_fields import read_domains, read_file_ids
from agent_tools.gateway.requests.failures import ApiError, invalid, missing
from agent_tools.gateway.requests.fields import Fields
from agent_tools.models.base import JsonObject

MAX_ID = 64
MODEL_FACING = "\0python"  # stands for the code interpreter's name for the model, until that is known


@dataclass(frozen=True)
class ContainerChoice:
    """The container to use: one by its id, or the conversation's, or a new one as described at `path`."""

    id: str | None = None
    memory: str | None = None
    file_ids: tuple[str, ...] = ()
    path: str = ""
    domains: tuple[str, ...] = ()


@dataclass(frozen=True)
class FunctionTool:
    """A function of the client."""

    name: str
    description: str
    parameters: JsonObject
    strict: bool | None

    @property
    def definition(self) -> JsonObject:
        """The function as it is offered to the model."""
        strict = {} if self.strict is None else {"strict": self.strict}
        return {"name": self.name, "description": self.description, **strict, "parameters": self.parameters}

    @property
    def shown(self) -> JsonObject:
        """The function as the response repeats it."""
        return {"type": "function", "strict": True, **self.definition}


@dataclass(frozen=True)
class Tools:
    """The tools that may be called. The response repeats `shown` and `shown_choice`."""

    container: ContainerChoice | None = None
    functions: tuple[FunctionTool, ...] = ()
    choice: Any = None
    shown: list[JsonObject] = field(default_factory=list)
    shown_choice: Any = "auto"

    @property
    def are_any(self) -> bool:
        """There is something to call."""
        return self.container is not None or bool(self.functions)


def read_tools(given: Fields) -> Tools:
    """Read `tools` and `tool_choice`.

    Raises:
        ApiError: 400.
    """
    container, functions, shown = None, [], []
    for index, tool in enumerate(given.array("tools")):
        param = f"tools[{index}]"
        fields = Fields(tool if isinstance(tool, dict) else {}, param)
        match fields.needed("type"):
            case "function":
                functions.append(_function(fields))
                shown.append(functions[-1].shown)
            case "code_interpreter":
                container, echo = _container(fields)
                shown.append({"type": "code_interpreter", "container": echo})
            case kind:
                message = f"Tools of type {kind!r:.40} are not supported here; 'code_interpreter' and 'function' are."
                raise invalid(message, f"{param}.type", "unsupported_value")
    choice = given.given.get("tool_choice")
    functions, has_code, upstream = _chosen(choice, functions, container is not None)
    shown_choice = "auto" if choice is None else choice
    return Tools(container if has_code else None, tuple(functions), upstream, shown, shown_choice)


def _function(fields: Fields) -> FunctionTool:
    parameters = fields.object("parameters") or {"type": "object", "properties": {}}
    return FunctionTool(fields.needed("name"), fields.text("description") or "", parameters, fields.flag("strict"))


def _container(fields: Fields) -> tuple[ContainerChoice, Any]:
    value = fields.given.get("container")
    if value is None:
        raise missing(fields.param("container"))
    if isinstance(value, str):
        if not 0 < len(value) <= MAX_ID:
            raise invalid(f"A container's id has at most {MAX_ID} characters.", fields.param("container"))
        return ContainerChoice(value), value
    if not isinstance(value, dict):
        raise fields.wrong("container", "a string or an object")
    auto = Fields(value, fields.param("container"))
    if auto.needed("type") != "auto":
        raise invalid("Invalid value: expected 'auto'.", auto.param("type"), "invalid_value")
    file_ids, domains = read_file_ids(auto), read_domains(auto)
    shown = {key: value[key] for key in ("type", "file_ids", "memory_limit", "network_policy") if key in value}
    return ContainerChoice(None, auto.text("memory_limit"), file_ids, auto.path, domains), shown


def _chosen(choice: Any, functions: list[FunctionTool], has_code: bool) -> tuple[list[FunctionTool], bool, Any]:
    """Return the functions that may be called, True if code may run, and `tool_choice` for the upstream."""
    if choice in (None, "auto"):
        return functions, has_code, None
    if choice in ("none", "required"):
        if choice == "required" and not functions and not has_code:
            raise invalid("tool_choice 'required' needs 'tools'.", "tool_choice")
        return functions, has_code, choice
    given = Fields(choice if isinstance(choice, dict) else {}, "tool_choice")
    match given.needed("type"):
        case "function" | "code_interpreter" as kind:
            named = _named(kind, given.text("name"), functions, has_code)
            return functions, has_code, named
        case "allowed_tools":
            return _allowed(given, functions, has_code)
        case _:
            raise invalid("Invalid value for 'tool_choice'.", "tool_choice.type", "invalid_value")


def _named(kind: str, name: str | None, functions: list[FunctionTool], has_code: bool) -> JsonObject:
    if kind == "code_interpreter" and has_code:
        return {"type": "function", "function": {"name": MODEL_FACING}}
    if kind == "function" and name in [function.name for function in functions]:
        return {"type": "function", "function": {"name": name}}
    raise _unknown_choice()


def _allowed(given: Fields, functions: list[FunctionTool], has_code: bool) -> tuple[list[FunctionTool], bool, Any]:
    allowed = [each for each in given.array("tools") if isinstance(each, dict)]
    names = {each.get("name") for each in allowed if each.get("type") == "function"}
    code = has_code and any(each.get("type") == "code_interpreter" for each in allowed)
    kept = [function for function in functions if function.name in names]
    if not kept and not code:
        raise _unknown_choice()
    return kept, code, "required" if given.text("mode") == "required" else None


def _unknown_choice() -> ApiError:
    return invalid("'tool_choice' names a tool that is not in 'tools'.", "tool_choice", "invalid_value")
