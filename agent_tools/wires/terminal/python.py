"""Python: code of a model in the kernel of its chat, and notebooks, each with a kernel of its own."""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agent_tools.limits import MIB
from agent_tools.results.execution import Error, Execution, Output
from agent_tools.results.outputs import Died, Display, Result, Stream, TimedOut, pictures_of
from agent_tools.runtime.in_thread import in_thread
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.terminal import requests as asked
from agent_tools.wires.terminal.callers import Caller, caller_of, in_sandbox, resolved
from agent_tools.wires.terminal.requests import Json, body_of
from agent_tools.wires.terminal.rooms import PATIENCE, SHELL, Rooms, aside, rooms_of

MAX_FIGURES = 8
MAX_FIGURE_BYTES = 8 * MIB  # of all figures of one answer
MAX_FILES = 50  # that an answer names
CELL_SECONDS = 120.0
MAX_NOTEBOOKS = 2  # of one container; a third takes the place of the one unused for longest
MAX_NOTEBOOK_BYTES = 32 * MIB


async def run_python(request: Request) -> Response:
    """POST /python: run code; a client that leaves ends it."""
    given, rooms, caller = await body_of(request, asked.PythonBody), rooms_of(request), caller_of(request)
    done, note = await _run(request, rooms, caller, lambda sandbox: sandbox, given.code, given.timeout)
    return Json(_answer(done, note))


def _answer(done: Execution, note: str) -> dict[str, Any]:
    figures: list[str] = []
    room = MAX_FIGURE_BYTES
    for picture in (picture for output in done.outputs for picture in pictures_of(output)):
        if len(figures) < MAX_FIGURES and len(picture.data) <= room:
            room -= len(picture.data)
            figures.append(f"data:{picture.mime};base64,{base64.b64encode(picture.data).decode()}")
    notes = [note] if note else []
    return {
        "ok": done.ok,
        "stdout": done.stdout,
        "stderr": done.stderr,
        "result": done.result.text if done.result else None,
        "error": done.error.text if done.error else None,
        "files": [{"path": each.name, "size": each.size} for each in done.changes[:MAX_FILES]],
        "figures": figures,
        "notes": [*notes, *done.notes],
    }


async def _run(
    request: Request,
    rooms: Rooms,
    caller: Caller,
    kernel_of: Callable[[Sandbox], Sandbox],
    code: str,
    seconds: float | None,
) -> tuple[Execution, str]:
    """Run code while the client waits for it; return it with a note for the model."""
    cancelled, running = threading.Event(), []

    def work() -> tuple[Execution, str]:
        with rooms.held(caller) as (sandbox, note):
            kernel = kernel_of(sandbox)
            running.append(kernel)
            return kernel.run_code(code, timeout=seconds, cancelled=cancelled), note

    def cancel() -> None:
        cancelled.set()
        for kernel in running:
            kernel.cancel(cancelled)

    found: list[tuple[Execution, str]] = []
    failed: list[Exception] = []
    async with anyio.create_task_group() as group:

        async def leave() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        group.start_soon(leave)
        try:
            found.append(await in_thread(work, cancel))
        except Exception as exc:  # noqa: BLE001  (raised below as it is, and not in the group of a task group)
            failed.append(exc)
        group.cancel_scope.cancel()
    if failed:
        raise failed[0]
    return found[0] if found else (Execution(()), "")


# -- notebooks ----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Notebook:
    """A notebook that is open: its file, and its kernel, which is kept until `close` is called."""

    id: str
    caller: Caller
    path: str
    kernel: Sandbox
    close: Callable[[], None]
    used_at: float
    count: int = 0
    is_busy: bool = False


class Notebooks:
    """The notebooks of all callers. For one event loop."""

    def __init__(self, rooms: Rooms) -> None:
        self.rooms = rooms
        self._open: dict[str, Notebook] = {}

    async def open(self, caller: Caller, path: str) -> Notebook:
        """Open a notebook's file with a fresh kernel."""
        there = [each for each in self._open.values() if each.caller.place[:2] == caller.place[:2]]
        for oldest in sorted(there, key=lambda each: each.used_at)[: len(there) - MAX_NOTEBOOKS + 1]:
            await self.end(oldest)
        book = await aside(self._opened, caller, path)
        self._open[book.id] = book
        return book

    def _opened(self, caller: Caller, path: str) -> Notebook:
        def begin(sandbox: Sandbox) -> Sandbox:
            _cells(sandbox, path)
            return sandbox.fresh_kernel()

        with ExitStack() as stack:
            id_ = self.rooms.ensure(caller).id
            kernel = stack.enter_context(self.rooms.containers.attended(id_, SHELL, begin, PATIENCE))
            stack.callback(kernel.close)
            return Notebook(secrets.token_hex(8), caller, path, kernel, stack.pop_all().close, time.monotonic())

    def find(self, caller: Caller, id_: str) -> Notebook:
        """Return a notebook of the caller's container.

        Raises:
            HTTPException: 404.
        """
        book = self._open.get(id_)
        if book is None or book.caller.place[:2] != caller.place[:2]:
            raise HTTPException(404, "Session not found")
        book.used_at = time.monotonic()
        return book

    async def end(self, book: Notebook) -> None:
        """Close a notebook."""
        if self._open.pop(book.id, None):
            await aside(book.close)

    async def close(self) -> None:
        """Close all."""
        for book in list(self._open.values()):
            await self.end(book)


async def open_notebook(request: Request) -> Response:
    """POST /notebooks."""
    path = resolved((await body_of(request, asked.PathQuery)).path, rooms_of(request).cwd(caller_of(request)))
    book = await _books(request).open(caller_of(request), path)
    return Json({"id": book.id, "kernel": "python3", "status": "ready"})


async def one_notebook(request: Request) -> Response:
    """GET and DELETE /notebooks/ID."""
    book = _book(request)
    if request.method == "DELETE":
        await _books(request).end(book)
        return Json({"status": "stopped"})
    status = "busy" if book.is_busy else "ready"
    return Json({"id": book.id, "path": book.path, "kernel": "python3", "status": status})


async def run_cell(request: Request) -> Response:
    """POST /notebooks/ID/execute: run a cell, and write its outputs into the file as it is then."""
    given, rooms, book = await body_of(request, asked.CellBody), rooms_of(request), _book(request)
    if book.is_busy:
        raise HTTPException(409, "Cell already executing")
    book.is_busy = True
    try:
        content = await rooms.use(book.caller, lambda sandbox: _cells(sandbox, book.path))
        source = given.source if given.source is not None else source_of(_cell(content, given.cell_index))
        done = Execution(())
        if source.strip():
            done, _ = await _run(request, rooms, book.caller, lambda _: book.kernel, source, CELL_SECONDS)
        book.count += 1
        outputs = [shown for each in done.outputs if (shown := _cell_output(each, book.count))]
        new = {"source": source, "outputs": outputs, "execution_count": book.count}
        await rooms.use(book.caller, partial(_save, book.path, given.cell_index, new))
    finally:
        book.is_busy = False
    status = "ok" if done.ok else "error"
    return Json({"status": status, "execution_count": book.count, "outputs": outputs})


def _cells(sandbox: Sandbox, path: str) -> dict[str, Any]:
    """Return a notebook's file.

    Raises:
        HTTPException: 400, it is none.
    """
    try:
        content = read_notebook(sandbox.read_file(in_sandbox(path), max_bytes=MAX_NOTEBOOK_BYTES + 1))
    except FileNotFoundError:
        raise HTTPException(404, f"Notebook not found: {path[:200]}") from None
    if content is None:
        raise HTTPException(400, f"Invalid notebook: {path[:200]}")
    return content


def read_notebook(data: bytes) -> dict[str, Any] | None:
    """Return a notebook's JSON, whose `cells` are a list of objects; None if it is no notebook, or too large."""
    try:
        content = json.loads(data) if len(data) <= MAX_NOTEBOOK_BYTES else None
    except (ValueError, RecursionError):
        return None
    cells = content.get("cells") if isinstance(content, dict) else None
    is_notebook = isinstance(cells, list) and all(isinstance(each, dict) for each in cells)
    return content if is_notebook and isinstance(content, dict) else None


def _cell(content: dict[str, Any], index: int) -> dict[str, Any]:
    cells = content["cells"]
    if not 0 <= index < len(cells):
        raise HTTPException(400, f"cell_index {index} out of range (0..{len(cells) - 1})")
    return dict(cells[index])


def source_of(cell: dict[str, Any]) -> str:
    """Return the code of a cell."""
    source = cell.get("source", "")
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def _save(path: str, index: int, new: dict[str, Any], sandbox: Sandbox) -> None:
    content = _cells(sandbox, path)
    if index < len(content["cells"]):
        content["cells"][index] |= new
        sandbox.write_file(in_sandbox(path), json.dumps(content, indent=1))


def _cell_output(output: Output, count: int) -> dict[str, Any] | None:
    """Return an output as a notebook has it, None for one that it has not."""
    match output:
        case Stream():
            return {"output_type": "stream", "name": output.name, "text": output.text}
        case Result() | Display():
            data = {m: base64.b64encode(v).decode() if isinstance(v, bytes) else v for m, v in output.data.items()}
            shown = {"data": data, "metadata": {}}
            if isinstance(output, Display):
                return {"output_type": "display_data", **shown}
            return {"output_type": "execute_result", "execution_count": count, **shown}
        case Error() | TimedOut() | Died():
            name = output.name if isinstance(output, Error) else type(output).__name__
            value = output.value if isinstance(output, Error) else output.text
            lines = output.text.splitlines()
            return {"output_type": "error", "ename": name, "evalue": value, "traceback": lines}
    return None


def _books(request: Request) -> Notebooks:
    books: Notebooks = request.app.state.notebooks
    return books


def _book(request: Request) -> Notebook:
    return _books(request).find(caller_of(request), request.path_params["id"])
