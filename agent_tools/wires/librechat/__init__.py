"""LibreChat's code API, for `LIBRECHAT_CODE_BASEURL=http://HOST:PORT/librechat`.

A session is a container: files and variables stay from one call to the next. Its id is hard to guess, and belongs to
the key that made it. A file's id is a digest of the session and its name, so nothing is stored for it.
"""

from __future__ import annotations

import posixpath
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from agent_tools.bodies.files import uploaded
from agent_tools.bodies.json_body import at_most
from agent_tools.containers.containers import Containers
from agent_tools.containers.contents import Contents
from agent_tools.containers.mount import Mount
from agent_tools.containers.records import NAMED
from agent_tools.containers.rows import Rows
from agent_tools.containers.spec import ContainerSpec
from agent_tools.limits import MIB
from agent_tools.machine.folder import Facts, Snapshot, safe_name
from agent_tools.results.execution import Execution
from agent_tools.runtime.in_thread import in_thread
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.librechat.state import LONGEST, MAX_LINE, SOURCE, StartedScript, identifier
from agent_tools.wires.open_resources import AHEAD, COMMAND, SLOT_TIMEOUT, CodeRun, Processes, program, used
from agent_tools.wires.routing import (
    CHUNK_BYTES,
    Json,
    Routes,
    WireRequest,
    application,
    aside,
    digest,
    health,
    while_connected,
)

ORIGIN = f"{NAMED}librechat"
MAX_OUTPUT = MIB  # of a shell's stream
MAX_FILES = 200  # that an answer names, or a request brings
MAX_SCRIPTS = 16  # of one session that wait for their tools
_ID = re.compile(r"[A-Za-z0-9_-]{21}")
_HOMES = ("/mnt/data/", "/workspace/")
Milliseconds = Annotated[float | None, Field(gt=0, le=600_000)]
Text = Annotated[str, Field(max_length=256)]


class _File(BaseModel):
    """A file of a session, to be copied for the code."""

    id: str = ""
    name: str = ""
    storage_session_id: str = ""
    session_id: str = ""  # of older clients

    @property
    def session(self) -> str:
        """The session that the file is in."""
        return self.storage_session_id or self.session_id


class _Result(BaseModel):
    """The answer of a tool."""

    call_id: str
    result: Any = None
    is_error: bool = False
    error_message: str | None = None


Files = Annotated[list[_File] | None, at_most(MAX_FILES)]


class _Wire:
    """The sessions, and scripts, each with its `StartedScript` as the label."""

    def __init__(self, containers: Containers[Any], rows: Rows) -> None:
        self.containers = containers
        self.contents = Contents(containers, rows)
        self.processes = Processes(containers, COMMAND, MAX_SCRIPTS, "scripts")


class _Call(WireRequest):
    """A request. Its methods block: call them from a thread."""

    wire: _Wire

    def find(self, session: str) -> str | None:
        """Return the id of a session's container; None if this owner has no such session."""
        row = self.wire.containers.find_named(self.owner, ORIGIN, session) if _ID.fullmatch(session) else None
        return str(row.id) if row else None

    def ensure(self, session: str) -> str:
        """Return the id of a session's container, which is made if there is none."""
        most: int = self.wire.containers.config.max_containers
        return str(self.wire.containers.named(self.owner, ContainerSpec(session, origin=ORIGIN), most).id)

    def choose(self, session_id: str | None, user: str, hint: str, files: list[_File]) -> str:
        """Return the session of a request: by its hint, its id or its files' id; else a new one."""
        if hint:
            return _digest(user, hint)
        for known in (session_id or "", *(each.session for each in files)):
            if self.find(known):
                return known
        return secrets.token_urlsafe(16)[:21]

    def listed(self, session: str) -> Snapshot:
        """Return the facts of each file of a session, by name."""
        container = self.find(session)
        return self.wire.contents.listed(container)[0] if container else {}

    def file(self, session: str, id_: str) -> tuple[str, str, Facts]:
        """Return the container, the name and the facts of a file.

        Raises:
            HTTPException: 404, there is none.
        """
        for name, facts in self.listed(session).items():
            if _digest(session, name) == id_ and (container := self.find(session)):
                return container, name, facts
        raise HTTPException(404, "File not found")

    def bring(self, sandbox: Sandbox, session: str, files: list[_File]) -> tuple[Snapshot, str]:
        """Copy files of other sessions into this one, then list it; return a note on files that are not there."""
        missing, known = list[str](), dict[str, dict[str, str]]()
        for each in files:
            if each.session not in known:
                known[each.session] = {_digest(each.session, name): name for name in self.listed(each.session)}
            name, container = known[each.session].get(each.id), self.find(each.session)
            if name is None or container is None:
                missing.append(f"[{each.name or each.id!r} is not there: it was deleted, or has expired]\n")
                continue
            if each.session == session:
                continue
            with self.wire.contents.opened(container, name) as content:
                if content is not None:
                    sandbox.write_file(_inside(each.name or name), content)
        return self.listed(session), "".join(missing)

    def changed(self, session: str, before: Snapshot) -> list[dict[str, Any]]:
        """List the files that are new or changed since a listing, in the form of answers."""
        names = [name for name, facts in self.listed(session).items() if before.get(name) != facts]
        return [
            {"id": _digest(session, name), "name": name, "storage_session_id": session, "kind": "user"}
            for name in sorted(names)[:MAX_FILES]
        ]


ROUTES = Routes(_Call)


@ROUTES.on("POST", "/exec")
async def _exec(
    call: _Call,
    lang: Text,
    code: str,
    args: Annotated[list[str] | None, at_most(1_000)] = None,
    session_id: Text | None = None,
    user_id: Text = "",
    files: Files = None,
    runtime_session_hint: Text = "",
    timeout: Milliseconds = None,
) -> Any:
    session = await aside(call.choose, session_id, user_id, runtime_session_hint, files or [])
    told: dict[str, Any] = {"session_id": session, "stdout": "", "stderr": ""}
    if lang not in ("py", "bash"):  # an answer that the model reads
        return {**told, "stderr": f"{lang} is not available here: use py or bash."}
    is_new = await aside(call.find, session) is None
    if runtime_session_hint:
        told |= {"runtime_session_id": session, "runtime_status": "new" if is_new else "reused"}
    run = CodeRun()
    seconds = timeout / 1_000 if timeout else None

    def work() -> dict[str, Any]:
        with call.wire.containers.acquire(call.ensure(session), SLOT_TIMEOUT) as (sandbox, woken):
            note = woken.result()
            run.of(sandbox)
            before, missing = call.bring(sandbox, session, files or [])
            if lang == "bash":
                command = ["/bin/bash", "-c", code, "bash", *(args or [])]
                ran = sandbox.run_command(command, timeout=seconds, max_output=MAX_OUTPUT, cancelled=run.event)
                stdout, stderr = ran.texts
                stderr += f"[{ran.reason}]\n" if ran.reason else ""
            else:
                sandbox.run_code(f"import sys; sys.argv = {['main.py', *(args or [])]!r}")
                done = sandbox.run_code(code, timeout=seconds, cancelled=run.event)
                stdout, stderr = _printed(sandbox, done, note)
        return {**told, "stdout": stdout, "stderr": missing + stderr, "files": call.changed(session, before)}

    return await while_connected(call.request, in_thread(work, run.cancel)) or told


def _printed(sandbox: Sandbox, done: Execution, note: str) -> tuple[str, str]:
    """Return the stdout and stderr of Python that ran in a kernel. Figures that it showed become files."""
    lost = list[str]()
    for picture in done.pictures:
        kind = picture.mime.rpartition("/")[2].partition("+")[0]
        try:
            sandbox.write_file(f"figure-{secrets.token_hex(4)}.{kind}", picture.data)
        except OSError as exc:  # the answer has the rest nevertheless
            lost.append(f"[a figure could not be saved: {exc.strerror}]")
    stdout = done.stdout + (f"{done.shown}\n" if done.shown else "")
    notes = "".join(f"{each}\n" for each in (note, *done.notes, *lost) if each)
    return stdout, done.stderr + (f"{done.error.text}\n" if done.error else "") + notes


@ROUTES.on("POST", "/exec/programmatic")
async def _programmatic(
    call: _Call,
    code: str = "",
    tools: Annotated[list[dict[str, Any]] | None, at_most(500)] = None,
    lang: Text = "py",
    session_id: Text | None = None,
    user_id: Text = "",
    files: Files = None,
    runtime_session_hint: Text = "",
    timeout: Milliseconds = None,
    continuation_token: Text = "",
    tool_results: Annotated[list[_Result] | None, at_most(500)] = None,
) -> Any:
    if continuation_token:
        missing = "There is no such continuation_token: the script has ended."
        script: StartedScript = call.wire.processes.find((call.owner,), continuation_token, missing).label
        if not script.lines.calls:
            raise HTTPException(404, missing)
        await script.send_results(tool_results or [])
    else:
        if lang != "py":
            raise HTTPException(400, f"{lang} cannot call tools here: use py.")
        session = await aside(call.choose, session_id, user_id, runtime_session_hint, files or [])
        script = await _script(call, session, code, tools or [], files or [], (timeout or 60_000) / 1_000)
    answer = await while_connected(call.request, script.go_on())
    if answer is None:
        script.thing.it.kill()
        return {"status": "error", "error": "The client has left."}
    return answer


async def _script(
    call: _Call, session: str, code: str, tools: list[dict[str, Any]], files: list[_File], seconds: float
) -> StartedScript:
    def container() -> str:
        return call.ensure(session)

    before, missing = await used(call.wire.containers, container, lambda sandbox: call.bring(sandbox, session, files))
    names = [str(tool.get("name", ""))[:256] for tool in tools]
    given = {"code": code, "tools": {identifier(name): name for name in names}}
    thing = await call.wire.processes.start(
        (call.owner, session),
        container,
        pace=AHEAD,
        **await aside(program, SOURCE, given, code),
        timeout=LONGEST,
        max_output=2 * MAX_LINE,
    )
    thing.label = script = StartedScript(thing, session, seconds, lambda: call.changed(session, before))
    script.lines.printed.write(missing)
    return script


@ROUTES.on("POST", "/upload")
@ROUTES.on("POST", "/upload/batch")
async def _upload(call: _Call) -> Any:
    session, stored = secrets.token_urlsafe(16)[:21], list[dict[str, Any]]()
    async with call.sent_form(MAX_FILES) as form:
        for file in uploaded(form):
            name = _inside(file.filename or "upload")
            await aside(lambda name=name, file=file: call.wire.contents.put(call.ensure(session), name, file.file))
            stored.append({"status": "success", "filename": name, "fileId": _digest(session, name)})
    if not stored:
        raise HTTPException(400, "No files provided")
    ids = {"session_id": session, "storage_session_id": session}
    return {"message": "success", **ids, "files": stored, "succeeded": len(stored), "failed": 0}


@ROUTES.on("GET", "/download/{session}/{file}")
async def _download(call: _Call, session: str, file: str) -> Any:
    container, name, _ = await aside(call.file, session, file)

    def pieces() -> Iterator[bytes]:
        with call.wire.contents.opened(container, name) as content:
            while content and (piece := content.read(CHUNK_BYTES)):
                yield piece

    shown = safe_name(posixpath.basename(name)).encode("ascii", "replace").decode()
    headers = {"Content-Disposition": f'attachment; filename="{shown}"', "X-Content-Type-Options": "nosniff"}
    return StreamingResponse(pieces(), media_type="application/octet-stream", headers=headers)


@ROUTES.on("GET", "/files/{session}")
async def _files(call: _Call, session: str) -> Any:
    if await aside(call.find, session) is None:
        raise HTTPException(404, "Session not found")
    names = await aside(call.listed, session)
    return [
        {
            "id": _digest(session, name),
            "name": f"{session}/{_digest(session, name)}{posixpath.splitext(name)[1]}",
            "metadata": {"original-filename": name},
            "storage_session_id": session,
        }
        for name in sorted(names)
    ]


@ROUTES.on("GET", "/sessions/{session}/objects/{file}")
async def _object(call: _Call, session: str, file: str) -> Any:
    _, name, (size, modified, _) = await aside(call.file, session, file)
    return {"size": size, "lastModified": modified // 1_000_000, "etag": _digest(name, str(modified))}


@ROUTES.on("DELETE", "/sessions/{session}/objects/{file}")
@ROUTES.on("DELETE", "/files/{session}/{file}")
async def _delete(call: _Call, session: str, file: str) -> Any:
    container, name, _ = await aside(call.file, session, file)
    await aside(call.wire.contents.delete, container, name)
    return {"message": "File deleted"}


def _digest(*parts: str) -> str:
    """Return an id of 21 characters, as LibreChat requires."""
    return digest(*parts)[:21]


def _inside(name: str) -> str:
    """Return the name of a file relative to the session's folder, and inside it."""
    for home in _HOMES:
        name = name.removeprefix(home)
    return posixpath.normpath(f"/{name}".replace("\0", "")).lstrip("/") or "upload"


@asynccontextmanager
async def _opened(containers: Containers[Any], rows: Rows) -> AsyncIterator[ASGIApp]:
    routes = [Route("/health", health), *ROUTES.made()]
    app = application(routes, lambda _, detail, status: Json({"error": detail}, status))
    app.state.wire = wire = _Wire(containers, rows)
    try:
        yield app
    finally:  # another door may fail to close
        await wire.processes.close()


MOUNT = Mount("/librechat", _opened, has_tree=True, public=("/health",))
