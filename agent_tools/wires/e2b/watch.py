"""Folders that clients watch: they are listed periodically, and the lists compared."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException

from agent_tools.results.files import FileInfo
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.e2b.connect import streamed
from agent_tools.wires.e2b.files import MAX_LEVELS, listed
from agent_tools.wires.e2b.state import ROUTES, E2BRequest, E2BSandbox, path_of
from agent_tools.wires.open_resources import Place
from agent_tools.wires.routing import aside

CHECK_SECONDS = 0.5  # seconds between two looks of a stream
KEEPALIVE = 30.0  # seconds of silence between two signs of life
MAX_WATCHERS = 16  # of a sandbox


@dataclass(eq=False)
class WatchedFolder:
    """A watched folder, as of the last check."""

    place: Place
    path: str
    depth: int
    seen: dict[str, FileInfo] = field(default_factory=dict)

    def new_events(self, sandbox: Sandbox) -> list[dict[str, str]]:
        """Return the changes since the last check. It blocks: for a thread."""
        before, self.seen = self.seen, dict(listed(sandbox, self.path, self.depth))
        return changes(before, self.seen, self.path)


def changes(before: Mapping[str, FileInfo], after: Mapping[str, FileInfo], root: str) -> list[dict[str, str]]:
    """Return the events between two listings of a folder; a moved file is a removed and a created one."""
    found = [(path, "REMOVE") for path in before if path not in after]
    for path, new in after.items():
        old = before.get(path)
        if old is None:
            found.append((path, "CREATE"))
        if new.kind == "file" and (new.size if old is None else (old.size, old.modified) != (new.size, new.modified)):
            found.append((path, "WRITE"))
        if old is not None and old.mode != new.mode:
            found.append((path, "CHMOD"))
    return [{"name": path[len(root.rstrip("/")) + 1 :], "type": f"EVENT_TYPE_{kind}"} for path, kind in found]


@ROUTES.on("POST", "/filesystem.Filesystem/CreateWatcher")
async def _create(call: E2BRequest, path: str = "", recursive: bool = False) -> Any:
    return {"watcherId": (await _begun(call, await call.here(), path, recursive))[0]}


@ROUTES.on("POST", "/filesystem.Filesystem/GetWatcherEvents")
async def _events(call: E2BRequest, watcherId: str) -> Any:  # noqa: N803
    return {"events": await call.use(_found(call, await call.here(), watcherId).new_events)}


@ROUTES.on("POST", "/filesystem.Filesystem/RemoveWatcher")
async def _remove(call: E2BRequest, watcherId: str) -> Any:  # noqa: N803
    _found(call, await call.here(), watcherId)
    del call.wire.watchers[watcherId]
    return {}


@ROUTES.on("POST", "/filesystem.Filesystem/WatchDir")
async def _stream(call: E2BRequest, path: str = "", recursive: bool = False) -> Any:
    return streamed(_followed(call, await call.here(), path, recursive))


async def _followed(
    call: E2BRequest, box: E2BSandbox, path: str, recursive: bool
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield what changes in a folder. It is watched from here on, since a client may leave before the stream begins."""
    id_, watcher = await _begun(call, box, path, recursive)

    def new_events() -> list[dict[str, str]]:
        with call.wire.containers.peek(box.id) as sandbox:
            return watcher.new_events(sandbox) if sandbox else []

    try:
        yield {"start": {}}
        spoke_at = time.monotonic()
        while id_ in call.wire.watchers:
            await asyncio.sleep(CHECK_SECONDS)
            for event in await aside(new_events):
                spoke_at = time.monotonic()
                yield {"filesystem": event}
            if time.monotonic() > spoke_at + KEEPALIVE:
                spoke_at = time.monotonic()
                yield {"keepalive": {}}
    finally:
        call.wire.watchers.pop(id_, None)


async def _begun(call: E2BRequest, box: E2BSandbox, path: str, recursive: bool) -> tuple[str, WatchedFolder]:
    watchers = call.wire.watchers
    if sum(each.place == box.place for each in watchers.values()) >= MAX_WATCHERS:
        raise HTTPException(429, f"{MAX_WATCHERS} folders of this sandbox are watched already: stop one of them.")
    watcher = WatchedFolder(box.place, path_of(path), MAX_LEVELS if recursive else 1)
    watchers[id_ := secrets.token_hex(8)] = watcher
    try:
        await call.use(watcher.new_events, box)
    except BaseException:
        watchers.pop(id_, None)  # unless its sandbox was killed meanwhile
        raise
    return id_, watcher


def _found(call: E2BRequest, box: E2BSandbox, id_: str) -> WatchedFolder:
    watcher: WatchedFolder | None = call.wire.watchers.get(id_)
    if watcher is None or watcher.place != box.place:
        raise HTTPException(404, f"There is no watcher {id_[:64]!r}.")
    return watcher
