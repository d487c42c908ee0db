"""The tools of a request: those with a container, the client's own, and the choice of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap
from typing import Annotated, Any, Literal, Union

from pydantic import AfterValidator, Field, Tag

from agent_tools.gateway.remote_mcp.allowed_servers import MAX_SERVERS, AllowedServers
from agent_tools.gateway.requests.api_errors import ApiError, invalid
from agent_tools.gateway.requests.container_fields import (
    MAX_FILES,
    TOO_MANY_FILES,
    ContainerFields,
    GivenSkill,
    LocalSkill,
    Needed,
    Unsupported,
)
from agent_tools.gateway.requests.fields import OBJECT, TEXT, Objects, RequestModel, by_shape, by_type, read, wrong
from agent_tools.gateway.responses.client_tools import MAX_TOOLS, TOOL_SEARCH, ClientTool, read_client_tools
from agent_tools.gateway.responses.mcp_names import model_name
from agent_tools.gateway.responses.mcp_tools import GivenServer, read_server
from agent_tools.models.base import JsonObject
from agent_tools.skills.shelf import MAX_SKILLS

MAX_ID = 64
CODE, SHELL, PATCH = "code_interpreter", "shell", "apply_patch"
_CLIENTS = ("function", "custom", "namespace", TOOL_SEARCH)
Unknown = Literal["refuse", "ignore"]
"""The treatment of tools that are not here."""
_STAND_IN = "\0{}"
"""Stands for the name of a built-in tool for the model, until that is known."""
_DESCRIBED = ("type", "file_ids", "memory_limit", "network_policy")


def _short(id_: str) -> str:
    if not 0 < len(id_) <= MAX_ID:
        raise wrong(f"A container's id has at most {MAX_ID} characters.", None)
    return id_


def _direct(callers: list[Any]) -> list[Any]:
    if callers and "direct" not in callers:
        raise wrong("The model calls tools itself: expected 'direct'.", None)
    return callers


class _Kind(RequestModel):
    type: Needed


class _Auto(ContainerFields):
    type: Literal["auto"]


class _Loaded(RequestModel):
    tools: Objects


class _Code(RequestModel):
    container: Annotated[
        Union[Annotated[str, AfterValidator(_short), TEXT], Annotated[_Auto, OBJECT]], by_shape("a string or an object")
    ]


class _Local(RequestModel):
    skills: Annotated[list[LocalSkill], Field(max_length=MAX_SKILLS)] = []


class _Reference(RequestModel):
    skills: Unsupported = None
    container_id: Annotated[Needed, AfterValidator(_short)]


class _Commands(RequestModel):
    """The shell or `apply_patch`: commands run and files change at the client, unless an environment is given."""

    allowed_callers: Annotated[list[Any], AfterValidator(_direct)] = []
    environment: (
        Annotated[
            Union[
                Annotated[_Local, Tag("\x00local")],
                Annotated[ContainerFields, Tag("\x00container_auto")],
                Annotated[_Reference, Tag("\x00container_reference")],
            ],
            by_type("Invalid value: expected 'container_auto', 'container_reference' or 'local'."),
        ]
        | None
    ) = None


class _ServerChoice(RequestModel):
    server_label: Needed
    name: str = ""


class _AllowedTools(RequestModel):
    tools: list[Any] = []
    mode: str = ""


@dataclass(frozen=True)
class ContainerChoice:
    """The container to use: one by its id, or the conversation's, or a new one as described at `path`."""

    id: str | None = None
    memory: str | None = None
    file_ids: tuple[str, ...] = ()
    path: str = ""
    domains: tuple[str, ...] = ()
    skills: tuple[GivenSkill, ...] = ()


@dataclass(frozen=True)
class Tools:
    """The tools that may be called. The response repeats `shown` and `shown_choice`.

    Attributes:
        container: where the tools of `built_in` run; None if none of them needs one.
        built_in: the container of each tool that may be called of `code_interpreter`, `shell` and `apply_patch`; None
            for a tool whose commands or changes the client makes.
        clients: the tools that the client runs.
        remote: the MCP servers whose tools are offered.
    """

    container: ContainerChoice | None = None
    built_in: dict[str, ContainerChoice | None] = field(default_factory=dict)
    clients: tuple[ClientTool, ...] = ()
    remote: tuple[GivenServer, ...] = ()
    choice: Any = None
    shown: list[JsonObject] = field(default_factory=list)
    shown_choice: Any = "auto"

    @property
    def are_any(self) -> bool:
        """There is something to call."""
        return bool(self.built_in or self.clients or self.remote)

    def is_local(self, kind: str) -> bool:
        """Return whether the client runs a built-in tool that may be called."""
        return kind in self.built_in and self.built_in[kind] is None

    @property
    def local_skills(self) -> list[LocalSkill]:
        """The skills of a shell that the client runs."""
        environments = [tool["environment"] for tool in self.shown if tool["type"] == SHELL]
        return [LocalSkill(**skill) for each in environments for skill in each.get("skills", ())]


def read_tools(
    tools: list[dict[str, Any]],
    choice: Any = None,
    unknown: Unknown = "refuse",
    servers: AllowedServers | None = None,
    loaded: Iterable[tuple[str, JsonObject]] = (),
) -> Tools:
    """Read `tools` and `tool_choice`. Tools of other types are errors or left out, by `unknown`.

    `servers` are the MCP servers that may be named; without it, `mcp` is such another type. `loaded` are the tools of
    the input's items, see `loaded_tools`; tools that the client searches for are offered at once.
    """
    parsed = Tools(shown_choice="auto" if choice is None else choice)
    for index, tool in enumerate(tools):
        path = f"tools[{index}]"
        match read(_Kind, tool, path).type:
            case kind if _is_clients(kind, tool):
                parsed = _with_clients(parsed, *read_client_tools(tool, path), path)
            case "code_interpreter":
                _add_built_in(parsed, CODE, *_container(tool, path))
            case "shell":
                container, environment = _environment(tool, path)
                _add_built_in(parsed, SHELL, container, {"environment": environment})
            case "apply_patch":
                _add_built_in(parsed, PATCH, _environment(tool, path)[0], {})  # OpenAI's has no environment
            case "mcp" if servers:
                parsed = _with_server(parsed, read_server(tool, servers, path), path)
            case kind if unknown == "refuse":
                raise _unknown_tool(kind, path)
    parsed = with_loaded(parsed, loaded, unknown)
    _check_callers(parsed)
    parsed = _chosen(choice, parsed)
    container = None
    for each in parsed.built_in.values():
        container = _shared(container, each)
    return replace(parsed, container=container) if container else parsed


def loaded_tools(items: Sequence[JsonObject]) -> Iterator[tuple[str, JsonObject]]:
    """Yield the tools that items bring, with their paths: those found by a search, and additional ones.

    Those of the newest item come first, since the first tool of a name is the one that is offered.
    """
    for index, item in reversed([*enumerate(items)]):
        if item.get("type") in ("tool_search_output", "additional_tools"):
            path = f"input[{index}]"
            yield from ((f"{path}.tools[{n}]", tool) for n, tool in enumerate(read(_Loaded, item, path).tools))


def with_loaded(found: Tools, loaded: Iterable[tuple[str, JsonObject]], unknown: Unknown) -> Tools:
    """Add tools that the response does not repeat; the same tool may come again."""
    taken = {each.name for each in found.clients}
    for path, tool in loaded:
        kind = read(_Kind, tool, path).type
        if _is_clients(kind, tool):
            new = {each.name: each for each in read_client_tools(tool, path)[0] if each.name not in taken}
            if new:  # else it is one of many that came before, and the others are not looked at again
                found = _with_clients(found, [*new.values()], None, path)
                taken |= new.keys()
        elif unknown == "refuse":
            raise _unknown_tool(kind, path)
    return found


def first_of_each_name(tools: Iterable[JsonObject]) -> list[JsonObject]:
    """Return those of the client's tools whose name no earlier one has; a namespace has no others.

    Raises:
        ApiError: 400, there are too many, or one is malformed.
    """
    found, taken = list[JsonObject](), set[str]()
    for tool in tools:
        if not _is_clients(read(_Kind, tool, "tools").type, tool):
            continue
        named = [each.name for each in read_client_tools(tool, "tools")[0]]
        own = tool.get("tools") or [] if tool["type"] == "namespace" else [tool]
        new = {name: each for name, each in zip(named, own) if name not in taken}
        if new:
            found.append({**tool, "tools": [*new.values()]} if tool["type"] == "namespace" else tool)
            taken |= new.keys()
            _check_number(taken)
    return found


def _is_clients(kind: str, tool: Mapping[str, Any]) -> bool:
    """Return whether the client runs a tool; a search for tools may also be its server's."""
    return kind in _CLIENTS and (kind != TOOL_SEARCH or tool.get("execution") == "client")


def _unknown_tool(kind: str, path: str) -> ApiError:
    if kind == "mcp":
        message = "MCP servers are not available here: the operator of the gateway can list some (mcp_servers)."
    else:
        known = "'code_interpreter', 'shell', 'apply_patch', 'mcp', 'function', 'custom', 'namespace' are."
        if kind == TOOL_SEARCH:
            known = "a search that the client executes is ('execution': 'client')."
        ignore = "The operator can have others ignored: --set unknown_tools=ignore."
        message = f"Tools of type {kind!r:.40} are not supported here; {known} {ignore}"
    return invalid(message, f"{path}.type", "unsupported_value")


def _with_clients(found: Tools, tools: list[ClientTool], shown: JsonObject | None, path: str) -> Tools:
    taken = {tool.name for tool in found.clients}
    for tool in tools:
        if tool.name in taken:
            raise invalid(f"There are two tools named {tool.name!r:.80}.", f"{path}.name", "invalid_value")
        taken.add(tool.name)
    _check_number(taken)
    if shown:
        found.shown.append(shown)
    return replace(found, clients=(*found.clients, *tools))


def _check_number(names: Collection[str]) -> None:
    if len(names) > MAX_TOOLS:
        raise invalid(f"There are more than {MAX_TOOLS} tools.", "tools", "invalid_value")


def _add_built_in(found: Tools, kind: str, container: ContainerChoice | None, shown: JsonObject) -> None:
    found.built_in[kind] = _shared(found.built_in.get(kind), container)
    found.shown.append({"type": kind, **shown})


def _with_server(found: Tools, given: GivenServer, path: str) -> Tools:
    labels = {each.server.label for each in found.remote}
    if given.server.label in labels:
        message = f"There are two servers labelled {given.server.label!r}."
        raise invalid(message, f"{path}.server_label", "invalid_value")
    if len(labels) >= MAX_SERVERS:
        message = f"There are more than {MAX_SERVERS} MCP servers, the maximum of one request."
        raise invalid(message, "tools", "invalid_value")
    found.shown.append(given.shown)
    return replace(found, remote=(*found.remote, given))


def _check_callers(found: Tools) -> None:
    """Check that there is code to call the tools that code alone may call."""
    if CODE not in found.built_in and any("direct" not in each.callers for each in found.remote):
        message = "'programmatic' needs the code interpreter, whose code makes the calls: add it, or 'direct'."
        raise invalid(message, "tools", "invalid_value")


def _shared(first: ContainerChoice | None, second: ContainerChoice | None) -> ContainerChoice | None:
    """Return the container of two tools, which may be of one type."""
    if first is None or second is None:
        return first or second
    networks_differ = not (first.id or second.id) and first.domains != second.domains
    pairs = ((first.id, second.id), (first.memory, second.memory), (first.skills, second.skills))
    if networks_differ or any(starmap(_differ, pairs)):
        message = "The tools of a request share one container: describe it as the same in each."
        raise invalid(message, "tools", "invalid_value")
    file_ids = tuple(dict.fromkeys(first.file_ids + second.file_ids))
    if len(file_ids) > MAX_FILES:
        raise invalid(TOO_MANY_FILES, "tools")
    id_, memory, domains = first.id or second.id, first.memory or second.memory, first.domains or second.domains
    path, skills = (first if first.skills else second).path or first.path, first.skills or second.skills
    return ContainerChoice(id_, memory, file_ids, path, domains, skills)


def _differ(first: object, second: object) -> bool:
    return bool(first and second) and first != second


def _container(tool: Mapping[str, Any], path: str) -> tuple[ContainerChoice, JsonObject]:
    """Read the container of the code interpreter; return what the response repeats, too."""
    given = read(_Code, tool, path).container
    if isinstance(given, str):
        return ContainerChoice(given), {"container": given}
    choice, shown = _described(given, tool["container"], f"{path}.container")
    return choice, {"container": shown}


def _environment(tool: Mapping[str, Any], path: str) -> tuple[ContainerChoice | None, JsonObject]:
    """Read where commands run and files are changed: in a container, or at the client; return what is repeated, too."""
    match read(_Commands, tool, path).environment:
        case ContainerFields() as given:
            return _described(given, tool["environment"], f"{path}.environment")
        case _Reference(container_id=id_):
            return ContainerChoice(id_), {"type": "container_reference", "container_id": id_}
        case _Local(skills=skills) if skills:
            return None, {"type": "local", "skills": [each.model_dump() for each in skills]}
    return None, {"type": "local"}


def _described(given: ContainerFields, shown: Mapping[str, Any], path: str) -> tuple[ContainerChoice, JsonObject]:
    skills, files = tuple(given.skills), tuple(given.file_ids)
    choice = ContainerChoice(None, given.memory_limit, files, path, given.domains, skills)
    without_zips = {"skills": [_without_zip(each) for each in shown["skills"]]} if skills else {}
    return choice, {**{key: shown[key] for key in _DESCRIBED if key in shown}, **without_zips}


def _without_zip(skill: Mapping[str, Any]) -> JsonObject:
    """Return a skill as a response repeats it, which is stored, too."""
    return {**skill, **({"source": {**skill["source"], "data": ""}} if skill["type"] == "inline" else {})}


def _chosen(choice: Any, found: Tools) -> Tools:
    """Return the tools that may be called, with `tool_choice` for the upstream."""
    if choice in (None, "auto"):
        return found
    if choice in ("none", "required"):
        if choice == "required" and not found.are_any:
            raise invalid("tool_choice 'required' needs 'tools'.", "tool_choice")
        return replace(found, choice=choice)
    given = choice if isinstance(choice, dict) else {}
    match read(_Kind, given, "tool_choice").type:
        case "function" | "custom" | "code_interpreter" | "shell" | "apply_patch" as kind:
            return replace(found, choice=_function(_named(kind, given, found)))
        case "mcp":
            server = read(_ServerChoice, given, "tool_choice")
            if server.server_label not in {each.server.label for each in found.remote}:
                raise _unknown_choice()
            name = server.name and _function(model_name(server.server_label, server.name))
            return replace(found, choice=name or "required")
        case "allowed_tools":
            return _allowed(read(_AllowedTools, given, "tool_choice"), found)
    raise invalid("Invalid value for 'tool_choice'.", "tool_choice.type", "invalid_value")


def _function(name: str) -> JsonObject:
    return {"type": "function", "function": {"name": name}}


def _named(kind: str, given: Mapping[str, Any], found: Tools) -> str:
    """Return the name of the one tool that is chosen."""
    if kind in found.built_in:
        return _STAND_IN.format(kind)
    for tool in found.clients:
        if _is_meant(tool, given):
            return tool.name
    raise _unknown_choice()


def _is_meant(tool: ClientTool, given: Mapping[str, Any]) -> bool:
    if given.get("type") == "namespace":
        return bool(tool.namespace) and given.get("name") == tool.namespace
    names = (given.get("type"), given.get("name"), given.get("namespace") or tool.namespace)
    return names == (tool.kind, tool.own_name, tool.namespace)


def _allowed(given: _AllowedTools, found: Tools) -> Tools:
    allowed = [each for each in given.tools if isinstance(each, dict)]
    if len(allowed) > MAX_TOOLS:
        raise invalid(f"There are more than {MAX_TOOLS} tools.", "tool_choice.tools", "invalid_value")
    kinds = [each.get("type") for each in allowed]
    labels = [each.get("server_label") for each in allowed if each.get("type") == "mcp"]
    left = replace(
        found,
        built_in={kind: container for kind, container in found.built_in.items() if kind in kinds},
        clients=tuple(tool for tool in found.clients if any(_is_meant(tool, each) for each in allowed)),
        remote=tuple(each for each in found.remote if each.server.label in labels),
        choice="required" if given.mode == "required" else None,
    )
    if not left.are_any:
        raise _unknown_choice()
    return left


def _unknown_choice() -> ApiError:
    return invalid("'tool_choice' names a tool that is not in 'tools'.", "tool_choice", "invalid_value")


def named_choice(options: Mapping[str, Any], names: Mapping[str, str]) -> JsonObject:
    """Return the options with the names of built-in tools in place of their stand-ins."""
    choice = options.get("tool_choice")
    known = {_STAND_IN.format(kind): name for kind, name in names.items()}
    if isinstance(choice, dict) and (name := known.get(choice["function"]["name"])):
        return {**options, "tool_choice": _function(name)}
    return dict(options)
