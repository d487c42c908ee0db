"""The tools that the client runs: functions, and custom tools, which take text, alone or in a namespace.

A model of chat completions knows functions with one name alone. So a tool of a namespace is offered as
`namespace__name`, and a custom tool as a function of one text, `input`; the model's calls are sent to the client in the
client's own words again. The fields are those of https://platform.openai.com/docs/api-reference/responses/create.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Union

from pydantic import AfterValidator, FailFast, Tag

from agent_tools.bodies import json_body
from agent_tools.bodies.json_body import BodyRefused, parsed_text
from agent_tools.gateway.requests.container_fields import Needed
from agent_tools.gateway.requests.fields import RequestModel, at_most, by_type, read, wrong
from agent_tools.models.base import FunctionDefinition, JsonObject

INPUT = "input"
TOOL_SEARCH: Final = "tool_search"
"""The type of a tool by which the model asks the client for further tools, and its name for the model."""
MAX_NAME = 64  # characters of a function's name, which many servers refuse more of
MAX_TOOLS = 512  # of a request, those of namespaces included
MAX_NAMESPACE = 256  # characters of its name
MAX_ABOUT = 4_096  # characters of its description, which each of its tools is offered with
_BY_CODE = (
    "Code cannot call tools that the client runs, since it cannot wait between requests: add 'direct', so that the "
    "model calls it; or offer it as a tool of an 'mcp' server, which code can call."
)


def _direct(callers: list[Any]) -> list[Any]:
    if callers and "direct" not in callers:
        raise wrong(_BY_CODE, "unsupported_value")
    return callers


class _Callable(RequestModel):
    name: Needed
    description: str = ""
    allowed_callers: Annotated[list[Any], AfterValidator(_direct)] = []


class _Function(_Callable):
    parameters: dict[str, Any] = {}
    strict: bool | None = None


class _Search(RequestModel):
    execution: Literal["client"]
    description: str = ""
    parameters: dict[str, Any] = {}


class _Custom(_Callable):
    format: dict[str, Any] = {}


_ClientTool = Annotated[
    Union[Annotated[_Function, Tag("\0function")], Annotated[_Custom, Tag("\0custom")]],
    by_type("A namespace has functions and custom tools."),
]


class _Namespace(RequestModel):
    name: Annotated[Needed, at_most(MAX_NAMESPACE, "A namespace's name")]
    description: Annotated[str, at_most(MAX_ABOUT, "A namespace's description")] = ""
    tools: Annotated[list[_ClientTool], FailFast(), json_body.at_most(MAX_TOOLS)] = []


@dataclass(frozen=True)
class ClientTool:
    """A tool that the client runs. The response repeats `shown`."""

    kind: Literal["function", "custom", "tool_search"]
    own_name: str
    namespace: str
    offered: FunctionDefinition
    shown: JsonObject

    @property
    def name(self) -> str:
        """The name for the model."""
        return str(self.offered["name"])

    @property
    def own_names(self) -> JsonObject:
        """The names of the tool in its calls."""
        return {"name": self.own_name, **({"namespace": self.namespace} if self.namespace else {})}


def read_client_tools(tool: Mapping[str, Any], path: str = "") -> tuple[list[ClientTool], JsonObject]:
    """Read a function, a custom tool, a search, or all tools of a namespace; return what the response repeats, too."""
    if tool["type"] == TOOL_SEARCH:
        search = read(_Search, tool, path)
        offered = {"description": search.description, "parameters": search.parameters or _NO_PARAMETERS}
        own = {"type": TOOL_SEARCH, "execution": search.execution, **offered}
        return [ClientTool(TOOL_SEARCH, TOOL_SEARCH, "", {"name": TOOL_SEARCH, **offered}, own)], own
    if tool["type"] != "namespace":
        found = _tool(read(_Function, tool, path) if tool["type"] == "function" else read(_Custom, tool, path))
        return [found], found.shown
    given = read(_Namespace, tool, path)
    tools = [_tool(each, given.name, given.description) for each in given.tools]
    named = {"type": "namespace", "name": given.name, "description": given.description}
    return tools, {**named, "tools": [each.shown for each in tools]}


def name_for_model(name: str, namespace: object = None) -> str:
    """Return the name under which the model knows a tool, of at most MAX_NAME characters."""
    whole = f"{namespace}__{name}" if namespace and isinstance(namespace, str) else name
    if len(whole) <= MAX_NAME or whole is name:
        return whole
    mark = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{whole[: MAX_NAME - 9]}_{mark}"


def arguments_of_text(text: str) -> str:
    """Return the arguments by which a model calls a custom tool with this text."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


def text_of_arguments(arguments: str) -> str:
    """Return the text that a model gave a custom tool; arguments of another form are the text themselves."""
    try:
        given = parsed_text(arguments)
    except BodyRefused:
        return arguments
    text = given.get(INPUT) if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments


def _tool(given: _Function | _Custom, namespace: str = "", about: str = "") -> ClientTool:
    name = name_for_model(given.name, namespace)
    description = "\n\n".join(filter(None, [given.description, about]))
    if isinstance(given, _Custom):
        format_ = given.format or {"type": "text"}
        offered = {"name": name, "description": _with_grammar(description, format_), "parameters": _TEXT}
        shown: JsonObject = {"type": "custom", "name": given.name, "description": given.description, "format": format_}
        return ClientTool("custom", given.name, namespace, offered, shown)
    strict: JsonObject = {} if given.strict is None else {"strict": given.strict}
    how = {"description": given.description, **strict, "parameters": given.parameters or _NO_PARAMETERS}
    shown = {"type": "function", "name": given.name, "strict": True, **how}
    return ClientTool("function", given.name, namespace, {"name": name, **how, "description": description}, shown)


class _Grammar(RequestModel):
    syntax: str = ""
    definition: str = ""


def _with_grammar(description: str, format_: Mapping[str, Any]) -> str:
    if format_.get("type") != "grammar":
        return description
    grammar = read(_Grammar, format_, "format")
    return f"{description}\n\nThe input follows this {grammar.syntax} grammar:\n{grammar.definition}".strip()


_NO_PARAMETERS: JsonObject = {"type": "object", "properties": {}}
_TEXT: JsonObject = {
    "type": "object",
    "properties": {INPUT: {"type": "string", "description": "The whole input, as plain text."}},
    "required": [INPUT],
    "additionalProperties": False,
}
