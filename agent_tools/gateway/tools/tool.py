"""The code interpreter for a model, in a container."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextlib import ExitStack, suppress
from typing import Any

from agent_tools.code_mode.toolset import Toolset
from agent_tools.containers.containers import Containers
from agent_tools.containers.failures import RowsAway
from agent_tools.containers.sentences import contents, reach
from agent_tools.errors import AgentToolsError, ToolServiceError
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.store.store import StoreError
from agent_tools.results.execution import Changes, Execution, Output
from agent_tools.skills.skill import Skill, with_catalogue
from agent_tools.text import fence, one_line
from agent_tools.tools.base import tool_errors
from agent_tools.tools.code_interpreter import CodeInterpreter
from agent_tools.tools.code_tool import CodeTool

# The container that the tools of one answer use, from their first call to the end.


class ContainerLease:
    """The lease of a container: the first call creates it by `make` if it does not exist; `close` releases it.

    It is for jobs, which have a ticket for a sandbox.

    Attributes:
        note: a sentence on the container that the model has not got yet.
        network: the domains that the code reaches, with spaces between them.
        skills: those that are mounted in it.
        functions: functions of the host that code may call, if there are any.
        has_made: the container did not exist before.
    """

    def __init__(
        self,
        containers: Containers[GatewayConfig],
        container_id: str,
        make: Callable[[], object] | None = None,
        network: str = "",
        own_skills: Iterable[Skill] = (),
    ) -> None:
        self.containers = containers
        self.network = network
        self.skills = (*containers.config.known_skills, *own_skills)
        self.container_id = container_id
        self.note = ""
        self.functions: Toolset | None = None
        self.has_made = False
        self._has_functions = False
        self._make = make
        self._stack = ExitStack()
        self._interpreter: CodeInterpreter | None = None
        self._woken: Future[str] | None = None
        self._starting: Future[None] | None = None
        self._given_up: Future[None] = Future()

    @property
    def has_container(self) -> bool:
        """The container has been made."""
        return self._make is None

    @property
    def used_interpreter(self) -> CodeInterpreter | None:
        """The interpreter, if a call has needed it."""
        return self._interpreter

    def interpreter(self) -> CodeInterpreter:
        """Return the container's interpreter, with its variables restored; it stays until `close`.

        Raises:
            ContainersError: the container cannot be made, or is over; or every sandbox is in use.
            ToolServiceError: `stop_waiting` was called before it was ready.
        """
        interpreter = self._take()
        self.warm_up()
        ready: Future[Any] | None = self._starting or self._woken
        if ready:
            wait([ready, self._given_up], return_when=FIRST_COMPLETED)
            if not ready.done():
                raise ToolServiceError(code="Cancelled", message="The call was ended before its sandbox was ready.")
        if self._woken:
            self.note += self._woken.result()
            self._woken = None
        if self.functions and not self._has_functions:
            with tool_errors():
                interpreter.as_sandbox.put_functions(self.functions)
            self._has_functions = True
        return interpreter

    def _take(self) -> CodeInterpreter:
        """Take the interpreter, which may not be ready yet."""
        if self._interpreter is None:
            self.ensure()
            try:
                self._interpreter, self._woken = self._stack.enter_context(
                    self.containers.acquire(self.container_id, has_ticket=True)
                )
            except StoreError as exc:
                raise RowsAway from exc
        return self._interpreter

    def ensure(self) -> None:
        """Make the container now, if it does not exist."""
        if self._make:
            try:
                self._make()
            except StoreError as exc:
                raise RowsAway from exc
            self._make, self.has_made = None, True

    def warm_up(self) -> None:
        """Start the sandbox while the model still writes. A failure comes again at the call, which reports it."""
        with suppress(AgentToolsError):
            interpreter = self._take()
            if interpreter.sandbox is None and self._starting is None:
                self._starting = self.containers.start_soon(self.container_id, interpreter)

    def stop_waiting(self) -> None:
        """End the wait for a starting sandbox; the start continues for the container's next use. For any thread."""
        with suppress(InvalidStateError):  # it was stopped before
            self._given_up.set_result(None)

    def take_note(self) -> str:
        """Return the note, once."""
        note, self.note = self.note, ""
        return note

    def close(self) -> None:
        """Release the container."""
        if self._interpreter and self._has_functions:
            with suppress(AgentToolsError):  # the functions that are left call nothing: their servers have ended, too
                self._interpreter.as_sandbox.put_functions(Toolset(style="sync"))
        self._interpreter = None
        self._stack.close()


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
        return self.markdown(self.lease.interpreter().run(params))

    def stream(
        self,
        params: str | dict[str, Any],
        files: Sequence[str] | None = None,
        timeout: float | None = None,
        cancelled: threading.Event | None = None,
    ) -> Generator[Output, None, Execution]:
        """Run code, yield its outputs, return the whole."""
        return (yield from self.lease.interpreter().stream(params, None, timeout, cancelled))

    def markdown(self, execution: Execution) -> str:
        """Return the execution as text for the model, with the files it made."""
        return self.lease.take_note() + self.lease.interpreter().markdown(execution) + _files(execution.changed)

    def cancel(self, cancelled: threading.Event) -> None:
        """End the stream that was given this event."""
        cancelled.set()
        if interpreter := self.lease.used_interpreter:
            interpreter.cancel(cancelled)


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
