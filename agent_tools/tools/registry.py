"""The tools by name, as agents look them up."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

TOOL_REGISTRY: dict[str, type[Any]] = {}
"""Tool name -> tool class."""

ToolClass = TypeVar("ToolClass", bound=type[Any])


def register_tool(name: str, allow_overwrite: bool = False) -> Callable[[ToolClass], ToolClass]:
    """Register a tool class under a name, as a decorator; sets the class's `name`.

    Raises:
        ValueError: the name is taken (unless `allow_overwrite`), or the class already has another name.
    """

    def register(cls: ToolClass) -> ToolClass:
        if name in TOOL_REGISTRY:
            if not allow_overwrite:
                raise ValueError(f"Tool `{name}` already exists! Please ensure that the tool name is unique.")
            warnings.warn(f"Tool `{name}` already exists! Overwriting with class {cls}.", stacklevel=2)
        own = getattr(cls, "name", "")
        if own and own != name:
            raise ValueError(f'{cls.__name__}.name="{own}" conflicts with @register_tool(name="{name}").')
        cls.name = name
        TOOL_REGISTRY[name] = cls
        return cls

    return register
