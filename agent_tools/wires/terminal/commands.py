"""Commands of the model: processes on a terminal, each of one chat."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import signal
from typing import Annotated, Any

from pydantic import Field

from agent_tools.bodies.json_body import at_most
from agent_tools.limits import MIB
from agent_tools.sandbox.async_sandbox import AsyncProcess
from agent_tools.wires.open_resources import TYPING_SECONDS, OpenResource, Processes
from agent_tools.wires.terminal.state import HOME, ROUTES, TerminalRequest, in_sandbox

USUAL_WAIT = 10.0  # seconds
ENVIRONMENT = {"HOME": HOME, "HISTFILE": "/tmp/.bash_history", "PAGER": "cat", "GIT_PAGER": "cat"}
"""Environment variables: caches lie in HOME, which is kept, and no pager waits for a key."""

Count = Annotated[int, Field(ge=1, le=2**53)]
Wait = Annotated[float | None, Field(ge=0, le=240, description="Seconds to wait for the end, at most 240.")]
Tail = Annotated[Count | None, Field(description="Return only the last lines, at most this number.")]
Typed = Annotated[str, Field(max_length=100_000, description="The text to type; end a line with a newline.")]
Process = OpenResource[AsyncProcess]


async def start(
    call: TerminalRequest, resources: Processes, label: str, command: str | list[str], cwd: str, env: dict[str, str]
) -> Process:
    """Start a command on a terminal, in the container of the call's chat."""
    return await resources.start(
        call.place,
        call.ensure,
        label,
        command=command,
        cwd="" if cwd == HOME else in_sandbox(cwd),
        env={**ENVIRONMENT, **env},
        stdin=b"",
        terminal=(24, 80),
        max_output=MIB,
    )


@ROUTES.on("POST", "/execute", query=("wait", "tail"), is_tool=True)
async def run_command(
    call: TerminalRequest,
    command: Annotated[str, Field(max_length=100_000, description="A command line for bash.")],
    wait: Wait = None,
    tail: Tail = None,
    cwd: Annotated[str | None, Field(description="The folder to start in.")] = None,
    env: Annotated[dict[str, str] | None, at_most(1_000), Field(description="Further environment variables.")] = None,
) -> Any:
    """Run a command line in bash, on a terminal.

    The answer comes after at most `wait` seconds (10 by default); a longer command has status running: use
    get_process_status.
    """
    folder = call.path(cwd or ".")
    run = await start(call, call.wire.commands, command, command, folder, env or {})
    await _awaited(run, USUAL_WAIT if wait is None else wait)
    return {**command_shown(run, 0, tail), "cwd": folder}


@ROUTES.on("GET", "/execute", is_tool=True)
async def list_processes(call: TerminalRequest) -> Any:
    """List the commands of this chat that run or ended recently."""
    return [_shown(run) for run in call.wire.commands.of(call.place)]


@ROUTES.on("GET", "/execute/{process_id}/status", is_tool=True)
async def get_process_status(
    call: TerminalRequest,
    process_id: str,
    wait: Wait = None,
    tail: Tail = None,
    offset: Annotated[int, Field(ge=0, le=2**53, description="Where to read on: `next_offset` of before.")] = 0,
) -> Any:
    """Read the output of a running command, from `offset` on, and whether it has ended."""
    run = _run(call, process_id)
    await _awaited(run, wait or 0)
    return command_shown(run, offset, tail)


@ROUTES.on("POST", "/execute/{process_id}/input", is_tool=True)
async def send_process_input(call: TerminalRequest, process_id: str, input: Typed) -> Any:  # noqa: A002
    """Type into a running command."""
    return await type_into(_run(call, process_id).it, input)


@ROUTES.on("DELETE", "/execute/{process_id}", is_tool=True)
async def kill_process(
    call: TerminalRequest,
    process_id: str,
    force: Annotated[bool, Field(description="Kill at once, instead of asking the command to end.")] = False,
) -> Any:
    """End a command that goes on."""
    run = _run(call, process_id)
    run.was_killed = run.was_killed or not run.it.is_over
    if force:
        run.it.kill()
    else:
        run.it.signal(signal.SIGTERM)
        await _awaited(run, 1.0)
    return {"status": "killed"}


def _run(call: TerminalRequest, id_: str) -> Process:
    return call.wire.commands.find(call.place, id_, "Process not found")


async def _awaited(run: Process, seconds: float) -> None:
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(run.it.wait(), seconds)


async def type_into(process: AsyncProcess, text: str) -> dict[str, str]:
    """Type text into a process; answer when it has taken it."""
    await process.write_stdin(text.encode("utf-8", "replace"), TYPING_SECONDS)
    return {"status": "ok"}


def _shown(run: Process) -> dict[str, Any]:
    status = "killed" if run.was_killed or run.it.sync.reason else "done"
    status = status if run.it.is_over else "running"
    return {"id": run.id, "command": run.label, "status": status, "exit_code": run.it.poll(), "log_path": None}


def command_shown(run: Process, offset: int, tail: int | None) -> dict[str, Any]:
    """Return a command with its output from a byte offset on; no character is cut in two."""
    shown, is_over, new = _shown(run), run.it.is_over, run.it.sync.read((offset, 0))
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(new.stdout, final=is_over)
    last = last_lines(text, tail) if tail else text
    why = run.it.sync.result().reason if is_over else ""
    output = last + (f"[{why}]\n" if why else "")
    return {
        **shown,
        "output": [{"type": "output", "data": output}] if output else [],
        "next_offset": new.cursor.stdout - len(decoder.getstate()[0]),
        "truncated": len(last) < len(text) or bool(new.omitted),
    }


def last_lines(text: str, number: int) -> str:
    """Return the last lines of a text, at most this number. Only these cost anything."""
    cuts = number + text.endswith("\n")
    before, *lines = text.rsplit("\n", cuts)
    return text[len(before) + 1 :] if len(lines) == cuts else text
