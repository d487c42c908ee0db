"""The code interpreter for a model, in a container."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any

from agent_tools.code_mode.toolset import Toolset
from agent_tools.code_reader import read_params
from agent_tools.containers.sentences import contents, reach
from agent_tools.gateway.tools.lease import ContainerLease
from agent_tools.results.execution import Changes, Execution, Output, finished
from agent_tools.skills.skill import with_catalogue
from agent_tools.text import fence, one_line
from agent_tools.tools.base import tool_errors
from agent_tools.tools.code_tool import CodeTool

MAX_FILES_LISTED = 50
_DESCRIPTION = (
    "Runs Python in a stateful Jupyter kernel and returns what it prints, its last expression's value, errors and "
    "figures. Variables, imports and files persist from call to call. Files are in /mnt/data, also the working "
    "directory; to offer the user a file saved there, link it as [name](sandbox:/mnt/data/name). It is {contents} "
    "{network} A call may run for {timeout:g} seconds."
)

_FUNCTIONS = (
    "The code may call these functions, which run outside the sandbox; call them by keywords, nothing is awaited. They "
    "answer in this turn only:"
)


class ContainerTool(CodeTool):
    """A `CodeTool` on a container. `function` is a client's own definition."""

    parameters = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The Python code to run."}},
        "required": ["code"],
        "additionalProperties": False,
    }

    def __init__(self, lease: ContainerLease, function: Mapping[str, Any] | None = None) -> None:
        given, config = function or {}, lease.containers.config
        self.name = str(given.get("name") or config.tool_name)
        self.description = str(given.get("description") or described(lease, _DESCRIPTION))
        self.lease = lease
        super().__init__()
        if given.get("parameters"):
            self.parameters = given["parameters"]

    def offer(self, functions: Toolset) -> None:
        """Let the code call functions of the host, until the container is released, and describe them to the model."""
        self.lease.functions = functions
        self.description = f"{self.description}\n\n{_FUNCTIONS}\n\n```python\n{functions.stubs()}\n```"

    def call(self, params: str | dict[str, Any], **kwargs: Any) -> str:
        """Run code and return the result for the model."""
        return self.markdown(finished(self.stream(params)))

    def stream(
        self,
        params: str | dict[str, Any],
        files: Sequence[str] | None = None,
        timeout: float | None = None,
        cancelled: threading.Event | None = None,
    ) -> Generator[Output, None, Execution]:
        """Run code, yield its outputs, return the whole."""
        sandbox = self.lease.sandbox()
        reading = read_params(params, sandbox.options.limits)
        with tool_errors(), closing(sandbox.stream_saved(reading, timeout, cancelled)) as outputs:
            return (yield from outputs)

    def markdown(self, execution: Execution) -> str:
        """Return the execution as text for the model, with the files it made."""
        return self.lease.take_note() + self.lease.sandbox().markdown(execution) + _files(execution.changed)

    def cancel(self, cancelled: threading.Event) -> None:
        """End the stream that was given this event."""
        cancelled.set()
        if sandbox := self.lease.used_sandbox:
            sandbox.cancel(cancelled)


def described(lease: ContainerLease, text: str) -> str:
    """Return a tool's description for a model, with the contents, the network and the skills of its container."""
    config = lease.containers.config
    text = text.format(contents=contents(config), network=reach(lease.network), timeout=config.timeout)
    return with_catalogue(text, lease.skills)


def _files(changed: Changes) -> str:
    files = changed.files
    lines = [f"/mnt/data/{one_line(each.name)} ({each.size:,} bytes)" for each in files[:MAX_FILES_LISTED]]
    if len(files) > MAX_FILES_LISTED:
        lines.append(f"and {len(files) - MAX_FILES_LISTED:,} more")
    lines += filter(None, [changed.note])
    if not lines:
        return ""
    return f"\n\nfiles written:\n\n{fence(chr(10).join(lines))}"
