"""The tools of a request: those with a container, the client's own, and the choice of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agent_tools.gateway.remote_mcp.reach import Reach
from agent_tools.gateway.requests.failures import ApiError, invalid, missing
from agent_tools.gateway.requests.fields import Fields, read_domains, read_file_ids
from agent_tools.gateway.responses.client_calls.tools import MAX_TOOLS, ClientTool, namespace_shown, read_client_tools
from agent_tools.gateway.responses.mcp.given import GivenServer, model_name, read_server
from agent_tools.models.base import JsonObject

MAX_ID = 64
CODE, SHELL, PATCH = "code_interpreter", "shell", "apply_patch"
Unknown = Literal["refuse", "ignore"]
"""The treatment of tools that are not here."""
MODEL_FACING = {CODE: "\0python", SHELL: "\0shell", PATCH: "\0apply_patch"}
"""Each stands for a tool's name for the model, until that is known."""


@dataclass(frozen=True)
class ContainerChoice:
    """The container to use: one by its id, or the conversation's, or a new one as described at `path`."""

    id: str | None = None
    memory: str | None = None
    file_ids: tuple[str, ...] = ()
    path: str = ""
    domains: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tools:
    """The tools that may be called. The response repeats `shown` and `shown_choice`.

    Attributes:
        container: where the tools of `built_in` run; None if none of them needs one.
        built_in: those of `code_interpreter`, `shell` and `apply_patch` that may be called.
        has_local_shell: the client runs the shell's commands.
        has_local_patch: the client makes the changes of files.
        clients: those that the client runs.
        remote: the MCP servers whose tools are offered.
    """

    container: ContainerChoice | None = None
    built_in: frozenset[str] = frozenset()
    has_local_shell: bool = False
    has_local_patch: bool = False
    clients: tuple[ClientTool, ...] = ()
    remote: tuple[GivenServer, ...] = ()
    choice: Any = None
    shown: list[JsonObject] = field(default_factory=list)
    shown_choice: Any = "auto"

    @property
    def are_any(self) -> bool:
        """There is something to call."""
        return bool(self.built_in or self.clients or self.remote)


@dataclass
class _Reading:
    """The tools of a request, as far as they are read."""

    offer: _Offer
    unknown: Unknown
    reach: Reach | None = None
    shown: list[JsonObject] = field(default_factory=list)
    code_container: ContainerChoice | None = None
    shell_container: ContainerChoice | None = None
    patch_container: ContainerChoice | None = None

    def add(self, tool: Fields) -> None:
        match tool.needed("type"):
            case "function" | "custom" | "namespace" as kind:
                found = list(read_client_tools(tool))
                self._add_clients(tool, found)
                self.shown.append(namespace_shown(tool, found) if kind == "namespace" else found[0].shown)
            case "code_interpreter":
                self.offer.built_in.add(CODE)
                code, echo = _container(tool)
                self.code_container = _shared(self.code_container, code)
                self.shown.append({"type": CODE, "container": echo})
            case "shell":
                self.offer.built_in.add(SHELL)
                shell, echo = _environment(tool)
                self.shell_container = _shared(self.shell_container, shell)
                self.shown.append({"type": SHELL, "environment": echo})
            case "apply_patch":
                self.offer.built_in.add(PATCH)
                patch, _ = _environment(tool)
                self.patch_container = _shared(self.patch_container, patch)
                self.shown.append({"type": PATCH})  # OpenAI's has no environment
            case "mcp" if self.reach:
                self._add_server(read_server(tool, self.reach), self.reach.max_servers, tool)
            case "mcp" if self.unknown == "refuse":
                message = "MCP servers are not spoken to here: whoever runs the gateway can list some (mcp_servers)."
                raise invalid(message, tool.param("type"), "unsupported_value")
            case kind if self.unknown == "refuse":
                known = "'code_interpreter', 'shell', 'apply_patch', 'mcp', 'function', 'custom' and 'namespace' are."
                message = f"Tools of type {kind!r:.40} are not supported here; {known}"
                raise invalid(message, tool.param("type"), "unsupported_value")

    def _add_server(self, given: GivenServer, most: int, fields: Fields) -> None:
        labels = {each.server.label for each in self.offer.remote}
        if given.server.label in labels:
            message = f"There are two servers labelled {given.server.label!r}."
            raise invalid(message, fields.param("server_label"), "invalid_value")
        if len(labels) >= most:
            message = f"There are more than {most} MCP servers, the maximum of one request."
            raise invalid(message, "tools", "invalid_value")
        self.offer.remote.append(given)
        self.shown.append(given.shown)

    def _add_clients(self, given: Fields, tools: list[ClientTool]) -> None:
        taken = {tool.name for tool in self.offer.clients}
        for tool in tools:
            if tool.name in taken:
                raise invalid(f"There are two tools named {tool.name!r:.80}.", given.param("name"), "invalid_value")
            taken.add(tool.name)
        self.offer.clients += tools
        if len(self.offer.clients) > MAX_TOOLS:
            raise invalid(f"There are more than {MAX_TOOLS} tools.", "tools", "invalid_value")


@dataclass
class _Offer:
    """The tools that may be called, as far as `tool_choice` leaves them."""

    clients: list[ClientTool] = field(default_factory=list)
    built_in: set[str] = field(default_factory=set)
    remote: list[GivenServer] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.clients and not self.built_in and not self.remote


def read_tools(given: Fields, unknown: Unknown = "refuse", reach: Reach | None = None) -> Tools:
    """Read `tools` and `tool_choice`. Tools of other types are refused or left out, by `unknown`.

    `reach` are the MCP servers that may be named; without it, `mcp` is such another type.

    Raises:
        ApiError: 400.
    """
    read = _Reading(_Offer(), unknown, reach)
    for index, tool in enumerate(given.array("tools")):
        read.add(Fields(tool if isinstance(tool, dict) else {}, f"tools[{index}]"))
    _check_callers(read.offer)
    choice = given.given.get("tool_choice")
    offer, upstream = _chosen(choice, read.offer)
    code = read.code_container if CODE in offer.built_in else None
    shell = read.shell_container if SHELL in offer.built_in else None
    patch = read.patch_container if PATCH in offer.built_in else None
    return Tools(
        container=_shared(_shared(code, shell), patch),
        built_in=frozenset(offer.built_in),
        has_local_shell=SHELL in offer.built_in and shell is None,
        has_local_patch=PATCH in offer.built_in and patch is None,
        clients=tuple(offer.clients),
        remote=tuple(offer.remote),
        choice=upstream,
        shown=read.shown,
        shown_choice="auto" if choice is None else choice,
    )


def _check_callers(offer: _Offer) -> None:
    """Check that there is code to call the tools that code alone may call."""
    if CODE not in offer.built_in and any("direct" not in each.callers for each in offer.remote):
        message = "'programmatic' needs the code interpreter, whose code makes the calls: add it, or 'direct'."
        raise invalid(message, "tools", "invalid_value")


def _shared(code: ContainerChoice | None, shell: ContainerChoice | None) -> ContainerChoice | None:
    """Return the container of two tools, which may be of one type."""
    if code is None or shell is None:
        return code or shell
    networks_differ = not (code.id or shell.id) and code.domains != shell.domains
    if _differ(code.id, shell.id) or _differ(code.memory, shell.memory) or networks_differ:
        message = "The tools of a request share one container: describe it as the same in each."
        raise invalid(message, "tools", "invalid_value")
    file_ids = tuple(dict.fromkeys(code.file_ids + shell.file_ids))
    id_, memory, domains = code.id or shell.id, code.memory or shell.memory, code.domains or shell.domains
    return ContainerChoice(id_, memory, file_ids, code.path or shell.path, domains)


def _differ(first: str | None, second: str | None) -> bool:
    return bool(first and second) and first != second


def _container(fields: Fields) -> tuple[ContainerChoice, Any]:
    value = fields.given.get("container")
    if value is None:
        raise missing(fields.param("container"))
    if isinstance(value, str):
        return _referred(value, fields.param("container")), value
    if not isinstance(value, dict):
        raise fields.wrong("container", "a string or an object")
    auto = Fields(value, fields.param("container"))
    if auto.needed("type") != "auto":
        raise invalid("Invalid value: expected 'auto'.", auto.param("type"), "invalid_value")
    return _described(auto)


def _environment(fields: Fields) -> tuple[ContainerChoice | None, JsonObject]:
    """Read where commands run and files are changed: in a container, or at the client, which is meant by default."""
    callers = fields.array("allowed_callers")
    if callers and "direct" not in callers:
        raise invalid("The model calls tools itself: expected 'direct'.", fields.param("allowed_callers"))
    environment = fields.object("environment")
    given = Fields({"type": "local"} if environment is None else environment, fields.param("environment"))
    if given.given.get("skills"):
        raise invalid("'skills' is not supported here.", given.param("skills"), "unsupported_parameter")
    match given.needed("type"):
        case "local":
            return None, {"type": "local"}
        case "container_auto":
            return _described(given)
        case "container_reference":
            id_ = given.needed("container_id")
            return _referred(id_, given.param("container_id")), {"type": "container_reference", "container_id": id_}
        case _:
            expected = "expected 'container_auto', 'container_reference' or 'local'"
            raise invalid(f"Invalid value: {expected}.", given.param("type"), "invalid_value")


def _referred(id_: str, param: str) -> ContainerChoice:
    if not 0 < len(id_) <= MAX_ID:
        raise invalid(f"A container's id has at most {MAX_ID} characters.", param)
    return ContainerChoice(id_)


def _described(auto: Fields) -> tuple[ContainerChoice, JsonObject]:
    file_ids, domains = read_file_ids(auto), read_domains(auto)
    shown = {
        key: auto.given[key] for key in ("type", "file_ids", "memory_limit", "network_policy") if key in auto.given
    }
    return ContainerChoice(None, auto.text("memory_limit"), file_ids, auto.path, domains), shown


def _chosen(choice: Any, offer: _Offer) -> tuple[_Offer, Any]:
    """Return the tools that may be called, and `tool_choice` for the upstream."""
    if choice in (None, "auto"):
        return offer, None
    if choice in ("none", "required"):
        if choice == "required" and offer.is_empty:
            raise invalid("tool_choice 'required' needs 'tools'.", "tool_choice")
        return offer, choice
    given = Fields(choice if isinstance(choice, dict) else {}, "tool_choice")
    match given.needed("type"):
        case "function" | "custom" | "code_interpreter" | "shell" | "apply_patch" as kind:
            return offer, _named(kind, given.given, offer)
        case "mcp":
            return offer, _of_server(given, offer)
        case "allowed_tools":
            return _allowed(given, offer)
        case _:
            raise invalid("Invalid value for 'tool_choice'.", "tool_choice.type", "invalid_value")


def _named(kind: str, given: Mapping[str, Any], offer: _Offer) -> JsonObject:
    if kind in offer.built_in:
        return {"type": "function", "function": {"name": MODEL_FACING[kind]}}
    for tool in offer.clients:
        if _is_meant(tool, given):
            return {"type": "function", "function": {"name": tool.name}}
    raise _unknown_choice()


def _of_server(given: Fields, offer: _Offer) -> Any:
    """Return the choice of a server's tool; of any of its tools, if none is named."""
    label = given.needed("server_label")
    if label not in {each.server.label for each in offer.remote}:
        raise _unknown_choice()
    name = given.text("name")
    return {"type": "function", "function": {"name": model_name(label, name)}} if name else "required"


def _is_meant(tool: ClientTool, given: Mapping[str, Any]) -> bool:
    if given.get("type") == "namespace":
        return bool(tool.namespace) and given.get("name") == tool.namespace
    names = (given.get("type"), given.get("name"), given.get("namespace") or tool.namespace)
    return names == (tool.kind, tool.own_name, tool.namespace)


def _allowed(given: Fields, offer: _Offer) -> tuple[_Offer, Any]:
    allowed = [each for each in given.array("tools") if isinstance(each, dict)]
    if len(allowed) > MAX_TOOLS:
        raise invalid(f"There are more than {MAX_TOOLS} tools.", "tool_choice.tools", "invalid_value")
    kinds = {kind for kind in offer.built_in if any(each.get("type") == kind for each in allowed)}
    clients = [tool for tool in offer.clients if any(_is_meant(tool, each) for each in allowed)]
    labels = [each.get("server_label") for each in allowed if each.get("type") == "mcp"]
    kept = _Offer(clients, kinds, [each for each in offer.remote if each.server.label in labels])
    if kept.is_empty:
        raise _unknown_choice()
    return kept, "required" if given.text("mode") == "required" else None


def _unknown_choice() -> ApiError:
    return invalid("'tool_choice' names a tool that is not in 'tools'.", "tool_choice", "invalid_value")


def named_choice(options: Mapping[str, Any], names: Mapping[str, str]) -> JsonObject:
    """Return the options with the names of built-in tools in place of what stood for them."""
    choice = options.get("tool_choice")
    known = {MODEL_FACING[kind]: name for kind, name in names.items()}
    if isinstance(choice, dict) and (name := known.get(choice["function"]["name"])):
        return {**options, "tool_choice": {"type": "function", "function": {"name": name}}}
    return dict(options)
