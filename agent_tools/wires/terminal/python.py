"""The route for Python: a model's code in the kernel of its chat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field
from starlette.exceptions import HTTPException

from agent_tools.limits import MIB
from agent_tools.results.execution import Execution
from agent_tools.runtime.in_thread import in_thread
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.open_resources import CodeRun
from agent_tools.wires.routing import while_connected
from agent_tools.wires.terminal.state import ROUTES, TerminalRequest

MAX_FIGURES = 8
MAX_FIGURE_BYTES = 8 * MIB  # of all figures of one answer
MAX_FILES = 50  # that an answer names


@ROUTES.on("POST", "/python", is_tool=True)
async def run_python(
    call: TerminalRequest,
    code: Annotated[str, Field(max_length=1_000_000, description="Python, as a cell of a notebook.")],
    timeout: Annotated[float | None, Field(gt=0, le=240, description="Seconds it may run, at most 240.")] = None,
) -> Any:
    """Run Python in this chat's kernel.

    Variables, imports and open objects stay for the next call, unlike with run_command; the last expression is the
    result; figures are shown to you as pictures. For work of more than 240 seconds, write a script and use run_command.
    """
    done, note = await run_code(call, lambda sandbox: sandbox, code, timeout)
    figures, room = list[str](), MAX_FIGURE_BYTES
    for picture in done.pictures[:MAX_FIGURES]:
        room -= len(picture.data)
        if room >= 0:
            figures.append(picture.data_url)
    return {
        "ok": done.ok,
        "stdout": done.stdout,
        "stderr": done.stderr,
        "result": done.shown or None,
        "error": done.error.text if done.error else None,
        "files": [{"path": each.name, "size": each.size} for each in done.changes[:MAX_FILES]],
        "figures": figures,
        "notes": [*([note] if note else []), *done.notes],
    }


async def run_code(
    call: TerminalRequest, kernel_of: Callable[[Sandbox], Sandbox], code: str, seconds: float | None
) -> tuple[Execution, str]:
    """Run code while the client waits for it; return it with a note for the model.

    Raises:
        HTTPException: 499, the client has hung up.
    """
    run = CodeRun()

    def work() -> tuple[Execution, str]:
        return run.run(call.wire.containers, call.ensure(), code, seconds, kernel_of)

    done = await while_connected(call.request, in_thread(work, run.cancel))
    if done is None:
        raise HTTPException(499, "The client has hung up.")
    return done
