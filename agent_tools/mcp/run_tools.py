"""The tools that run something, and the tools that restart."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio.to_thread
from mcp_types import CallToolResult

from agent_tools.code_reader import checked_code
from agent_tools.containers.containers import Containers
from agent_tools.errors import InvalidParams
from agent_tools.limits import Limits
from agent_tools.mcp.activity import ActivityPlace, CodeActivity, CommandActivity
from agent_tools.mcp.answers import said
from agent_tools.mcp.services import McpCall, ToolAnswer
from agent_tools.mcp.shapes import ContainerNote, GetOutputs, GotOutputs, InContainer, Ran, RunCommand, RunPython, Wait


async def run_python(call: McpCall, given: RunPython) -> ToolAnswer:
    """Run code."""
    code, timeout = checked_code(given.code, Limits()), _timeout(call, given.timeout)
    container = call.container(given.container, make=True)
    return await call.answer("code", lambda: CodeActivity(call.place(container), code, timeout), container)


async def run_command(call: McpCall, given: RunCommand) -> ToolAnswer:
    """Run a command, beside the code."""
    command, timeout, most = checked_code(given.command, Limits()), _timeout(call, given.timeout), Limits.max_text_chars
    container = call.container(given.container, make=True)
    return await call.answer(
        "command", lambda: CommandActivity(call.place(container), command, timeout, most), container
    )


async def wait(call: McpCall, given: Wait) -> CallToolResult:
    """Wait for what goes on, and return what is new."""
    container, most = call.container(given.container), call.services.bounds.answer_within
    activity = call.services.activities.find(call.owner, container)
    if activity:
        return await call.follow(activity, min(given.seconds or most, most))
    await call.aside(lambda _: None, container)
    ran = Ran(container=container, status="done", duration=0)
    return said(f"container: {container}\nNothing is running, and there is no new output.", ran)


async def get_outputs(call: McpCall, given: GetOutputs) -> CallToolResult:
    """Return the outputs of a run for the page; `wait` still returns them, too."""
    container, activities = call.container(given.container), call.services.activities
    running = activities.find(call.owner, container)
    if running and given.code in ("", running.source):
        with suppress(TimeoutError):
            await activities.take_turn(running, min(given.seconds, call.services.bounds.answer_within))
        if not running.is_over:
            return said("", GotOutputs(container=container, status="running", progress=running.progress))
        await anyio.to_thread.run_sync(call.show, running)
    return said("", call.services.runs.find(call.owner, container, given.code))


async def restart(call: McpCall, given: InContainer) -> CallToolResult:
    """Replace the kernel."""
    container = call.container(given.container)
    await call.aside(_restart, container, call.place(container))
    return _said(container, "The kernel was restarted: variables are gone, files are kept.")


async def close(call: McpCall, given: InContainer) -> CallToolResult:
    """Delete the container."""
    container = call.container(given.container)
    await call.aside(_delete, container, call.services.stock.containers, call.owner)
    return _said(container, "The container is deleted, with its variables and files.")


def _timeout(call: McpCall, given: float) -> float:
    most = call.services.bounds.max_timeout
    if given > most:
        raise InvalidParams(f"timeout={given:g} is more than {most:,g} seconds.")
    return given or float(call.services.stock.containers.config.timeout)


def _restart(_: str, place: ActivityPlace) -> None:
    with place.sandbox(lambda _: None) as (sandbox, _note):
        sandbox.restart()


def _delete(container: str, containers: Containers[Any], owner: str) -> None:
    containers.delete(owner, container)


def _said(container: str, message: str) -> CallToolResult:
    return said(f"container: {container}\n{message}", ContainerNote(container=container, message=message))
