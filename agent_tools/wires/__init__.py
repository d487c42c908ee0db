"""Protocols of other products, each translated into code, commands and files of containers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_tools.containers.mount import Mount

WIRES = ("terminal", "vllm", "sandboxfusion", "librechat", "e2b", "codex")
"""Their names, for `serve --wire`; each is a module here with a `MOUNT`."""


def mount_of(name: str) -> Mount:
    """Return the mount of a wire, which is imported now."""
    mount: Mount = import_module(f"agent_tools.wires.{name}").MOUNT
    return mount
