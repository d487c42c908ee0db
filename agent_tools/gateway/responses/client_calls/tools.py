"""The tools that the client runs: functions, and custom tools, which take text; each alone or in a namespace.

A model of chat completions knows functions with one name alone. So a tool of a namespace is offered as
`namespace__name`, and a custom tool as a function of one text, `input`; what the model calls is told to the client in
the client's own words again. The fields are those of https://platform.openai.com/docs/api-reference/responses/create.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agent_tools.gateway.requests.failures import invalid
from agent_tools.gateway.requests.fields import Fields
from agent_tools.models.base import FunctionDefinition, JsonObject

Kind = Literal["function", "custom"]
KINDS = ("function", "custom")
INPUT = "input"
MAX_NAME = 64  # characters of a function's name, which many servers refuse more of
MAX_TOOLS = 512  # of a request, those of namespaces included
MAX_NAMESPACE = 256  # characters of its name
MAX_ABOUT = 4_096  # characters of its description, which each of its tools is offered with
_BY_CODE = (
    "Code cannot call what the client runs, since it would have to wait over requests: add 'direct', and the model "
    "calls it; or offer it by a server of a tool of type 'mcp', whose tools code calls."
)


@dataclass(frozen=True)
class ClientTool:
    """One of them. `shown` is what the response repeats of it."""

    kind: Kind
    own_name: str
    namespace: str
    offered: FunctionDefinition
    shown: JsonObject

    @property
    def name(self) -> str:
        """The name for the model."""
        return str(self.offered["name"])


def read_client_tools(fields: Fields) -> Iterator[ClientTool]:
    """Read a function, a custom tool, or all tools of a namespace.

    Raises:
        ApiError: 400.
    """
    if fields.needed("type") != "namespace":
        yield _tool(fields)
        return
    namespace, about = fields.needed("name"), fields.text("description") or ""
    for name, text, most in (("name", namespace, MAX_NAMESPACE), ("description", about, MAX_ABOUT)):
        if len(text) > most:
            raise invalid(f"A namespace's {name} has at most {most:,} characters.", fields.param(name), "invalid_value")
    if len(fields.array("tools")) > MAX_TOOLS:
        raise invalid(f"There are more than {MAX_TOOLS} tools.", fields.param("tools"), "invalid_value")
    for index, given in enumerate(fields.array("tools")):
        inner = Fields(given if isinstance(given, dict) else {}, f"{fields.param('tools')}[{index}]")
        if inner.needed("type") not in KINDS:
            raise invalid("A namespace has functions and custom tools.", inner.param("type"), "invalid_value")
        yield _tool(inner, namespace, about)


def namespace_shown(fields: Fields, tools: list[ClientTool]) -> JsonObject:
    """Return a namespace as the response repeats it."""
    about = fields.text("description") or ""
    named = {"type": "namespace", "name": fields.needed("name"), "description": about}
    return {**named, "tools": [tool.shown for tool in tools]}


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
        given = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = given.get(INPUT) if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments


def _tool(fields: Fields, namespace: str = "", about: str = "") -> ClientTool:
    name, kind = fields.needed("name"), fields.needed("type")
    callers = fields.array("allowed_callers")
    if callers and "direct" not in callers:
        raise invalid(_BY_CODE, fields.param("allowed_callers"), "unsupported_value")
    description = fields.text("description") or ""
    offered_name = name_for_model(name, namespace)
    told = "\n\n".join(filter(None, [description, about]))
    if kind == "custom":
        format_ = fields.object("format") or {"type": "text"}
        offered = {"name": offered_name, "description": _with_grammar(told, format_), "parameters": _TEXT}
        shown = {"type": kind, "name": name, "description": description, "format": format_}
        return ClientTool("custom", name, namespace, offered, shown)
    parameters = fields.object("parameters") or {"type": "object", "properties": {}}
    strict = fields.flag("strict")
    rule: JsonObject = {} if strict is None else {"strict": strict}
    how: JsonObject = {"description": description, **rule, "parameters": parameters}
    offered = {"name": offered_name, **how, "description": told}
    return ClientTool("function", name, namespace, offered, {"type": kind, "name": name, "strict": True, **how})


def _with_grammar(description: str, format_: Mapping[str, Any]) -> str:
    if format_.get("type") != "grammar":
        return description
    grammar = Fields(format_, "format")
    rule = f"The input follows this {grammar.text('syntax') or ''} grammar:\n{grammar.text('definition') or ''}"
    return f"{description}\n\n{rule}".strip()


_TEXT: JsonObject = {
    "type": "object",
    "properties": {INPUT: {"type": "string", "description": "The whole input, as plain text."}},
    "required": [INPUT],
    "additionalProperties": False,
}
