"""The code interpreter as a model sees it: one container, held from the first call to the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from agent_tools.errors import AgentToolsError
from agent_tools.execution import Execution, FileChange, Output
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.containers.containers import Containers
from agent_tools.runtime.network import NetworkPolicy
from agent_tools.text import fence, one_line
from agent_tools.tools.code_interpreter import CodeInterpreter
from agent_tools.tools.code_tool import CodeTool

MAX_FILES_TOLD = 50
PARKED = "note:\n\nThe sandbox was replaced since the last call: variables are lost, files are kept.\n\n"
_DESCRIPTION = (
    "Runs Python in a stateful Jupyter kernel and returns what it prints, its last expression's value, errors and "
    "figures. Variables, imports and files persist from call to call. Files are in /mnt/data, also the working "
    "directory; to offer the user a file saved there, link it as [name](sandbox:/mnt/data/name). numpy, pandas, "
    "matplotlib, seaborn, scikit-learn, scipy, sympy, openpyxl and pillow are installed{more}. {network} "
    "A call may run for {timeout:g} seconds."
)


class ContainerTool(CodeTool):
    """A `CodeTool` on a container. `close` lets go of it.

    `make` makes the container at the first call, if it does not exist; `function` is a client's own definition;
    `network` has the domains that the code reaches, with spaces between them.
    """

    parameters = {  # noqa: RUF012
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The Python code to run."}},
        "required": ["code"],
        "additionalProperties": False,
    }

    def __init__(
        self,
        containers: Containers,
        container_id: str,
        make: Callable[[], object] | None = None,
        function: Mapping[str, Any] | None = None,
        network: str = "",
    ) -> None:
        given = function or {}
        self.name = str(given.get("name") or containers.config.tool_name)
        self.description = str(given.get("description") or described(containers.config, network))
        self.container_id = container_id
        self.first_note = ""
        self._containers = containers
        self._make = make
        self._stack = ExitStack()
        self._interpreter: CodeInterpreter | None = None
        super().__init__()
        if given.get("parameters"):
            self.parameters = given["parameters"]

    def call(self, params: str | dict[str, Any], **kwargs: Any) -> str:
        """Run code and return the result as a model is told of it."""
        interpreter = self._held()
        return self.markdown(interpreter.run(params))

    def stream(
        self,
        params: str | dict[str, Any],
        files: Sequence[str] | None = None,
        timeout: float | None = None,
        cancelled: threading.Event | None = None,
    ) -> Generator[Output, None, Execution]:
        """Run code, yield its outputs, return the whole."""
        return (yield from self._held().stream(params, None, timeout, cancelled))

    def markdown(self, execution: Execution) -> str:
        """Return the execution as a model is told of it, with the files it made."""
        note, self.first_note = self.first_note, ""
        return note + self._held().markdown(execution) + _files(execution.changes)

    def cancel(self, cancelled: threading.Event) -> None:
        """End the stream that was given this event."""
        cancelled.set()
        if self._interpreter:
            self._interpreter.cancel(cancelled)

    def ensure(self) -> None:
        """Make the container now, if it does not exist."""
        if self._make:
            self._make()
            self._make = None

    def warm_up(self) -> None:
        """Start the sandbox while the model still writes. A failure here comes again at the call, which tells of it."""
        with suppress(AgentToolsError):
            interpreter = self._held()
            if interpreter.sandbox is None:
                self._containers.start_soon(self.container_id, interpreter)

    @property
    def has_container(self) -> bool:
        """The container has been made."""
        return self._make is None

    def close(self) -> None:
        """Let go of the container."""
        self._interpreter = None
        self._stack.close()

    def _held(self) -> CodeInterpreter:
        if self._interpreter is None:
            self.ensure()
            self._interpreter, is_replaced = self._stack.enter_context(self._containers.held(self.container_id))
            self.first_note += PARKED if is_replaced else ""
        return self._interpreter


def described(config: GatewayConfig, network: str = "") -> str:
    """Return the tool's description for a model."""
    more = f", and {', '.join(config.packages)}" if config.packages else ""
    return _DESCRIPTION.format(more=more, network=_reach(network), timeout=config.timeout)


def _reach(network: str) -> str:
    """Return a sentence on what the code reaches."""
    if not network:
        return "There is no network access."
    packages = " `%pip install` works." if NetworkPolicy.read({"allow": network.split()}).has_packages else ""
    return f"Of the network, only these hosts can be reached: {', '.join(network.split())}.{packages}"


def _files(changes: Sequence[FileChange]) -> str:
    if not changes:
        return ""
    lines = [f"/mnt/data/{one_line(each.name)} ({each.size:,} bytes)" for each in changes[:MAX_FILES_TOLD]]
    if len(changes) > MAX_FILES_TOLD:
        lines.append(f"and {len(changes) - MAX_FILES_TOLD:,} more")
    return f"\n\nfiles written:\n\n{fence(chr(10).join(lines))}"
