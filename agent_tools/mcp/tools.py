"""The table of tools: name, arguments, answer, hints and function of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types
from mcp_types import ToolAnnotations
from pydantic import BaseModel, ValidationError

from agent_tools.errors import InvalidParams
from agent_tools.mcp import apps, files
from agent_tools.mcp.run_tools import close, get_outputs, restart, run_command, run_python, wait
from agent_tools.mcp.services import McpCall, ToolAnswer
from agent_tools.mcp.shapes import (
    ContainerNote,
    FileListing,
    GetFile,
    GetOutputs,
    Got,
    GotOutputs,
    InContainer,
    Put,
    PutFile,
    Ran,
    RunCommand,
    RunPython,
    ToolInput,
    Wait,
    schema_of,
)

MAX_ARGUMENTS = 64  # of a call, unknown ones included


@dataclass(frozen=True)
class McpTool:
    """A tool. The hints are those of the protocol: none reaches anything but its container."""

    title: str
    description: str
    call: Callable[[McpCall, Any], Awaitable[ToolAnswer]]
    takes: type[ToolInput]
    answers: type[BaseModel]
    shows_page: bool = False
    is_for_page: bool = False
    is_read_only: bool = False
    is_destructive: bool = False
    is_idempotent: bool = False

    def shown(self, name: str, description: str, *, is_sealed: bool, has_page: bool) -> mcp_types.Tool:
        """Return the tool in the protocol's form."""
        page = {"resourceUri": apps.PAGE} if self.shows_page else {"visibility": ["app"]} if self.is_for_page else None
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
            _meta={"ui": page} if page and has_page else None,
        )

    def read(self, name: str, arguments: Mapping[str, Any] | None) -> ToolInput:
        """Return a call's arguments.

        Raises:
            InvalidParams: they do not fit the tool's parameters.
        """
        given = arguments or {}
        if len(given) > MAX_ARGUMENTS:  # each unknown one would leave an error of a kilobyte
            raise InvalidParams(f"Invalid arguments for {name}: there are more than {MAX_ARGUMENTS}.")
        try:
            return self.takes.model_validate(given)
        except ValidationError as exc:
            wrong = [f"{'.'.join(map(str, each['loc']))[:80]}: {each['msg']}" for each in exc.errors()[:3]]
            raise InvalidParams(f"Invalid arguments for {name}: {'; '.join(wrong)[:400]}.") from None


TOOLS = {
    "run_python": McpTool(
        "Run Python",
        "Runs Python in a sealed container and returns what it prints, its last expression's value, errors, figures "
        "and the files it wrote. Variables, imports and files stay for the next call with the same `container`. For "
        "code that runs longer than {within:g} seconds, the answer has the status `running` and the output so far: "
        "`wait` returns the rest. It is {contents} {network} Files are in the working directory, /workspace.",
        run_python,
        RunPython,
        Ran,
        shows_page=True,
    ),
    "wait": McpTool(
        "Wait",
        "Waits for code or a command whose answer had the status `running`, and returns the new output.",
        wait,
        Wait,
        Ran,
        shows_page=True,
        is_read_only=True,
    ),
    "run_command": McpTool(
        "Run a command",
        "Runs a command of the shell in the container, beside the Python code and in the same files. There is no "
        "terminal and no root.",
        run_command,
        RunCommand,
        Ran,
        shows_page=True,
    ),
    "put_file": McpTool(
        "Put a file",
        "Writes a file into the container's working directory; one of the same name is replaced.",
        files.put_file,
        PutFile,
        Put,
        is_destructive=True,
        is_idempotent=True,
    ),
    "get_file": McpTool(
        "Get a file",
        "Reads a file of the container's working directory: text, a picture, or any other file as base64.",
        files.get_file,
        GetFile,
        Got,
        is_read_only=True,
        is_idempotent=True,
    ),
    "list_files": McpTool(
        "List files",
        "Lists the files in the container's working directory, with their sizes in bytes.",
        files.list_files,
        InContainer,
        FileListing,
        is_read_only=True,
        is_idempotent=True,
    ),
    "restart": McpTool(
        "Restart",
        "Replaces the container's Python by a fresh one and ends code that runs: variables are gone, files are kept.",
        restart,
        InContainer,
        ContainerNote,
        is_destructive=True,
        is_idempotent=True,
    ),
    "close": McpTool(
        "Close",
        "Deletes the container with its variables and files.",
        close,
        InContainer,
        ContainerNote,
        is_destructive=True,
    ),
    "get_outputs": McpTool(
        "Get outputs",
        "Returns the outputs of a run to the page that shows them; it is not for models.",
        get_outputs,
        GetOutputs,
        GotOutputs,
        is_for_page=True,
        is_read_only=True,
        is_idempotent=True,
    ),
}
