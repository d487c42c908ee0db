"""The tools that run something, and those that begin anew."""

from __future__ import annotations

from typing import Any

from mcp_types import CallToolResult

from agent_tools.code_reader import checked_code
from agent_tools.containers.containers import Containers
from agent_tools.errors import InvalidParams
from agent_tools.limits import Limits
from agent_tools.mcp.activity import CodeRun, CommandRun, Place
from agent_tools.mcp.answers import said
from agent_tools.mcp.services import Call
from agent_tools.mcp.shapes import InContainer, Ran, RunCommand, RunPython, Said, Wait


async def run_python(call: Call, given: RunPython) -> CallToolResult:
    """Run code."""
    code, timeout = checked_code(given.code, Limits()), _timeout(call, given.timeout)
    container = call.container(given.container, make=True)
    return await call.answer("code", lambda: CodeRun(call.place(container), code, timeout), container)


async def run_command(call: Call, given: RunCommand) -> CallToolResult:
    """Run a command, beside the code."""
    command, timeout, most = checked_code(given.command, Limits()), _timeout(call, given.timeout), Limits.max_text_chars
    container = call.container(given.container, make=True)
    return await call.answer("command", lambda: CommandRun(call.place(container), command, timeout, most), container)


async def wait(call: Call, given: Wait) -> CallToolResult:
    """Wait for what goes on, and return what is new."""
    container, most = call.container(given.container), call.services.bounds.answer_within
    activity = call.services.activities.find(call.owner, container)
    if activity:
        return await call.attend(activity, min(given.seconds or most, most))
    await call.aside(lambda _: None, container)
    ran = Ran(container=container, status="done", duration=0)
    return said(f"container: {container}\nNothing is running, and all that ran was told.", ran)


async def restart(call: Call, given: InContainer) -> CallToolResult:
    """Replace the kernel."""
    container = call.container(given.container)
    await call.aside(_restart, container, call.place(container))
    return _said(container, "The kernel is a fresh one: variables are gone, files are kept.")


async def close(call: Call, given: InContainer) -> CallToolResult:
    """Delete the container."""
    container = call.container(given.container)
    await call.aside(_delete, container, call.services.stock.containers, call.owner)
    return _said(container, "The container is gone, with its variables and files.")


def _timeout(call: Call, given: float) -> float:
    most = call.services.bounds.max_timeout
    if given > most:
        raise InvalidParams(f"timeout={given:g} is more than {most:,g} seconds.")
    return given or float(call.services.stock.containers.config.timeout)


def _restart(_: str, place: Place) -> None:
    with place.sandbox(lambda _: None) as (sandbox, _note):
        sandbox.restart()


def _delete(container: str, containers: Containers[Any], owner: str) -> None:
    containers.delete(owner, container)


def _said(container: str, message: str) -> CallToolResult:
    return said(f"container: {container}\n{message}", Said(container=container, message=message))
