"""The tools of an agent, made from the entries of `function_list`."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, Union

from agent_tools.models.base import Json
from agent_tools.tools import TOOL_REGISTRY, BaseTool
from agent_tools.tools.function_tool import FunctionTool

ToolLike = Union[str, Json, BaseTool, Callable[..., Any]]
"""A registered name; a dict with `name` and the tool's options; a tool; a typed function."""


def tools_of(function_list: Iterable[ToolLike] | None, owned: ExitStack) -> dict[str, BaseTool]:
    """Return the tools by name; those made here are closed with `owned`. Of two with one name, the later one counts.

    Raises:
        ValueError: a name is not registered, or an entry is of another kind.
    """
    tools: dict[str, BaseTool] = {}
    for entry in function_list or ():
        tool = _tool(entry, owned)
        if tool.name in tools:
            warnings.warn(f"The tool {tool.name} is given twice; the later one counts.", stacklevel=4)
        tools[tool.name] = tool
    return tools


def _tool(entry: ToolLike, owned: ExitStack) -> BaseTool:
    if isinstance(entry, BaseTool):
        return entry
    if isinstance(entry, str):
        return _registered(entry, {}, owned)
    if isinstance(entry, Mapping) and isinstance(entry.get("name"), str):
        return _registered(entry["name"], entry, owned)
    if callable(entry) and not isinstance(entry, type):
        return FunctionTool(entry)
    raise ValueError(
        f"function_list has {entry!r:.80}: give a tool's name, a dict with its 'name' and options, "
        "a tool, or a function."
    )


def _registered(name: str, cfg: Json, owned: ExitStack) -> BaseTool:
    if name not in TOOL_REGISTRY:
        near = difflib.get_close_matches(name, TOOL_REGISTRY, 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Registered: {', '.join(sorted(TOOL_REGISTRY))}."
        raise ValueError(f"Tool {name} is not registered. {hint}")
    tool: BaseTool = TOOL_REGISTRY[name](dict(cfg))
    if callable(close := getattr(tool, "close", None)):
        owned.callback(close)
    return tool
