"""The routes for notebooks, each with a kernel of its own."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.exceptions import HTTPException

from agent_tools.bodies.json_body import BodyRefused, parsed
from agent_tools.limits import MIB
from agent_tools.results.execution import Error, Output
from agent_tools.results.notebook import error
from agent_tools.results.outputs import Died, Display, Result, Stream, TimedOut
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.open_resources import OpenResource
from agent_tools.wires.routing import bundle
from agent_tools.wires.terminal.python import run_code
from agent_tools.wires.terminal.state import MAX_NOTEBOOKS, ROUTES, Notebook, TerminalRequest, in_sandbox

CELL_SECONDS = 120.0
MAX_NOTEBOOK_BYTES = 32 * MIB


@ROUTES.on("POST", "/notebooks")
async def _open_notebook(call: TerminalRequest, path: str) -> Any:
    path, room, resources = call.path(path), call.place[:2], call.wire.notebooks

    def begin(sandbox: Sandbox) -> Notebook:
        _cells(sandbox, path)
        return Notebook(path, sandbox.fresh_kernel())

    for oldest in resources.of(room)[: 1 - MAX_NOTEBOOKS]:
        await resources.end(oldest)
    book = await resources.open(room, call.ensure, begin)
    return {"id": book.id, "kernel": "python3", "status": "ready"}


def _book(call: TerminalRequest, id_: str) -> OpenResource[Notebook]:
    return call.wire.notebooks.find(call.place[:2], id_, "Session not found")


@ROUTES.on("GET", "/notebooks/{id}")
async def _notebook(call: TerminalRequest, id: str) -> Any:  # noqa: A002
    book = _book(call, id).it
    return {"id": id, "path": book.path, "kernel": "python3", "status": "busy" if book.is_busy else "ready"}


@ROUTES.on("DELETE", "/notebooks/{id}")
async def _close_notebook(call: TerminalRequest, id: str) -> Any:  # noqa: A002
    await call.wire.notebooks.end(_book(call, id))
    return {"status": "stopped"}


@ROUTES.on("POST", "/notebooks/{id}/execute")
async def _run_cell(call: TerminalRequest, id: str, cell_index: int, source: str | None = None) -> Any:  # noqa: A002
    """Run a cell, and write its outputs into the current file."""
    book = _book(call, id).it
    if book.is_busy:
        raise HTTPException(409, "Cell already executing")
    book.is_busy = True
    try:
        cells = (await call.use(lambda sandbox: _cells(sandbox, book.path))).cells
        if not 0 <= cell_index < len(cells):
            raise HTTPException(400, f"cell_index {cell_index} out of range (0..{len(cells) - 1})")
        source = source if source is not None else source_of(cells[cell_index])
        done, _ = await run_code(call, lambda _: book.sandbox, source, CELL_SECONDS)
        book.count += 1
        outputs = [shown for each in done.outputs if (shown := _cell_output(each, book.count))]
        new = {"source": source, "outputs": outputs, "execution_count": book.count}
        await call.use(partial(_save, book.path, cell_index, new))
    finally:
        book.is_busy = False
    return {"status": "ok" if done.ok else "error", "execution_count": book.count, "outputs": outputs}


class NotebookFile(BaseModel):
    """The JSON of a notebook; only its cells matter here."""

    model_config = ConfigDict(extra="allow")
    cells: list[dict[str, Any]]


def _cells(sandbox: Sandbox, path: str) -> NotebookFile:
    """Return a notebook's file.

    Raises:
        HTTPException: 400, it is none; 404.
    """
    try:
        data = sandbox.read_file(in_sandbox(path), max_bytes=MAX_NOTEBOOK_BYTES + 1)
        return NotebookFile.model_validate(parsed(data) if len(data) <= MAX_NOTEBOOK_BYTES else {})
    except FileNotFoundError:
        raise HTTPException(404, f"Notebook not found: {path[:200]}") from None
    except (BodyRefused, ValidationError):
        raise HTTPException(400, f"Invalid notebook: {path[:200]}") from None


def source_of(cell: dict[str, Any]) -> str:
    """Return the code of a cell."""
    source = cell.get("source", "")
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def _save(path: str, index: int, new: dict[str, Any], sandbox: Sandbox) -> None:
    content = _cells(sandbox, path)
    if index < len(content.cells):
        content.cells[index] |= new
        sandbox.write_file(in_sandbox(path), content.model_dump_json(indent=1))


def _cell_output(output: Output, count: int) -> dict[str, Any] | None:
    """Return an output in the notebook format; None for an output that it does not have."""
    match output:
        case Stream():
            return {"output_type": "stream", "name": output.name, "text": output.text}
        case Result(data):
            return {"output_type": "execute_result", "execution_count": count, "data": bundle(data), "metadata": {}}
        case Display(data):
            return {"output_type": "display_data", "data": bundle(data), "metadata": {}}
        case Error(name, value, text):
            return error(name, value, text)
        case TimedOut() | Died():
            return error(type(output).__name__, output.text, output.text)
    return None
