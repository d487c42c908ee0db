"""The table of tools: what each is called, takes, answers and may do, and the function that does it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types
from mcp_types import CallToolResult, ToolAnnotations
from pydantic import BaseModel, ValidationError

from agent_tools.errors import InvalidParams
from agent_tools.mcp import files, runs
from agent_tools.mcp.services import Call
from agent_tools.mcp.shapes import (
    Arguments,
    GetFile,
    Got,
    InContainer,
    Listed,
    Put,
    PutFile,
    Ran,
    RunCommand,
    RunPython,
    Said,
    Wait,
    schema_of,
)


@dataclass(frozen=True)
class Tool:
    """A tool. The hints are those of the protocol: none reaches anything but its container."""

    title: str
    description: str
    call: Callable[[Call, Any], Awaitable[CallToolResult]]
    takes: type[Arguments]
    answers: type[BaseModel]
    is_read_only: bool = False
    is_destructive: bool = False
    is_idempotent: bool = False

    def shown(self, name: str, description: str, *, is_sealed: bool) -> mcp_types.Tool:
        """Return the tool as clients are told of it."""
        hints = ToolAnnotations(
            title=self.title,
            read_only_hint=self.is_read_only,
            destructive_hint=self.is_destructive,
            idempotent_hint=self.is_idempotent,
            open_world_hint=not is_sealed,
        )
        return mcp_types.Tool(
            name=name,
            title=self.title,
            description=description,
            input_schema=schema_of(self.takes),
            output_schema=schema_of(self.answers),
            annotations=hints,
        )

    def read(self, name: str, arguments: Mapping[str, Any] | None) -> Arguments:
        """Return a call's arguments.

        Raises:
            InvalidParams: they are not what the tool takes.
        """
        try:
            return self.takes.model_validate(arguments or {})
        except ValidationError as exc:
            wrong = [f"{'.'.join(map(str, each['loc']))[:80]}: {each['msg']}" for each in exc.errors()[:3]]
            raise InvalidParams(f"{name} cannot be called so. {'; '.join(wrong)[:400]}.") from None


TOOLS = {
    "run_python": Tool(
        "Run Python",
        "Runs Python in a sealed container and returns what it prints, its last expression's value, errors, figures "
        "and the files it wrote. Variables, imports and files stay for the next call with the same `container`. Code "
        "that runs for longer than {within:g} seconds is answered with status `running` and the output so far: `wait` "
        "has the rest. It is {contents} {network} Files are in the working directory, /workspace.",
        runs.run_python,
        RunPython,
        Ran,
    ),
    "wait": Tool(
        "Wait",
        "Waits for code or a command that was answered with status `running`, and returns what is new: the rest, or "
        "more of the output if it goes on.",
        runs.wait,
        Wait,
        Ran,
        is_read_only=True,
    ),
    "run_command": Tool(
        "Run a command",
        "Runs a command of the shell in the container, beside the Python code and in the same files. There is no "
        "terminal and no root.",
        runs.run_command,
        RunCommand,
        Ran,
    ),
    "put_file": Tool(
        "Put a file",
        "Writes a file into the container's working directory; one of the same name is replaced.",
        files.put_file,
        PutFile,
        Put,
        is_destructive=True,
        is_idempotent=True,
    ),
    "get_file": Tool(
        "Get a file",
        "Reads a file of the container's working directory: text, a picture, or any other file as base64.",
        files.get_file,
        GetFile,
        Got,
        is_read_only=True,
        is_idempotent=True,
    ),
    "list_files": Tool(
        "List files",
        "Lists the files in the container's working directory, with their sizes in bytes.",
        files.list_files,
        InContainer,
        Listed,
        is_read_only=True,
        is_idempotent=True,
    ),
    "restart": Tool(
        "Restart",
        "Replaces the container's Python by a fresh one and ends code that runs: variables are gone, files are kept.",
        runs.restart,
        InContainer,
        Said,
        is_destructive=True,
        is_idempotent=True,
    ),
    "close": Tool(
        "Close",
        "Deletes the container with its variables and files.",
        runs.close,
        InContainer,
        Said,
        is_destructive=True,
    ),
}
