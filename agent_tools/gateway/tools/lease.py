"""The container that the tools of one answer use, from their first call to the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextlib import ExitStack, suppress
from typing import Any

from agent_tools.code_mode.toolset import Toolset
from agent_tools.containers.containers import Containers
from agent_tools.errors import AgentToolsError, ToolServiceError
from agent_tools.gateway.config import GatewayConfig
from agent_tools.skills.skill import Skill
from agent_tools.tools.base import tool_errors
from agent_tools.tools.tool_sandbox import ToolSandbox


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
        self._sandbox: ToolSandbox | None = None
        self._woken: Future[str] | None = None
        self._starting: Future[None] | None = None
        self._wait_ended: Future[None] = Future()

    @property
    def has_container(self) -> bool:
        """The container has been made."""
        return self._make is None

    @property
    def used_sandbox(self) -> ToolSandbox | None:
        """The sandbox, if a call has needed it."""
        return self._sandbox

    def sandbox(self) -> ToolSandbox:
        """Return the container's sandbox, with its variables restored; it stays until `close`.

        Raises:
            ContainersError: the container cannot be made, or is over; or every sandbox is in use.
            ToolServiceError: `stop_waiting` was called before it was ready.
        """
        sandbox = self._take()
        self.warm_up()
        ready: Future[Any] | None = self._starting or self._woken
        if ready:
            wait([ready, self._wait_ended], return_when=FIRST_COMPLETED)
            if not ready.done():
                raise ToolServiceError(code="Cancelled", message="The call was ended before its sandbox was ready.")
        if self._woken:
            self.note += self._woken.result()
            self._woken = None
        if self.functions and not self._has_functions:
            with tool_errors():
                sandbox.put_functions(self.functions)
            self._has_functions = True
        return sandbox

    def _take(self) -> ToolSandbox:
        """Take the sandbox, which may not be ready yet."""
        if self._sandbox is None:
            self.ensure()
            acquired = self.containers.acquire(self.container_id, has_ticket=True)
            self._sandbox, self._woken = self._stack.enter_context(acquired)
        return self._sandbox

    def ensure(self) -> None:
        """Make the container now, if it does not exist."""
        if self._make:
            self._make()
            self._make, self.has_made = None, True

    def warm_up(self) -> None:
        """Start the sandbox while the model still writes. A failure comes again at the call, which reports it."""
        with suppress(AgentToolsError):
            sandbox = self._take()
            if sandbox.container is None and self._starting is None:
                self._starting = self.containers.slots.start(self.container_id, sandbox)

    def stop_waiting(self) -> None:
        """End the wait for a starting sandbox; the start continues for the container's next use. For any thread."""
        with suppress(InvalidStateError):  # it was stopped before
            self._wait_ended.set_result(None)

    def take_note(self) -> str:
        """Return the note, once."""
        note, self.note = self.note, ""
        return note

    def close(self) -> None:
        """Release the container."""
        if self._sandbox and self._has_functions:
            with suppress(AgentToolsError):  # the functions that are left call nothing: their servers have ended, too
                self._sandbox.put_functions(Toolset(style="sync"))
        self._sandbox = None
        self._stack.close()
