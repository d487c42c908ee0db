"""The containers of callers. Reading starts none; commands, shells, code and writing do."""

from __future__ import annotations

import json
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from agent_tools.containers.containers import Containers
from agent_tools.containers.contents import Contents
from agent_tools.containers.records import Container, Rows, WireValue
from agent_tools.containers.spec import ContainerSpec
from agent_tools.runtime.in_thread import in_thread
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.terminal.callers import HOME, Caller, digest

PATIENCE = 30.0  # seconds that a request waits for a place
SHELL, COMMAND = 1, 2  # ranks of what stays open
MAX_CWDS = 10_000
T = TypeVar("T")


class Rooms:
    """Finds and makes the containers of callers. For one event loop; work in sandboxes is done in threads."""

    def __init__(self, containers: Containers[Any], rows: Rows) -> None:
        self.containers = containers
        self.contents = Contents(containers, rows)
        self._rows = rows
        self._starting: Counter[tuple[str, str, int]] = Counter()
        self._cwds: OrderedDict[tuple[str, str, str], str] = OrderedDict()

    def find(self, caller: Caller) -> Container | None:
        """Return the caller's container; None if there is none. It counts as no use."""
        return self.containers.find_named(caller.owner, caller.origin, caller.room) if caller.is_user else None

    def ensure(self, caller: Caller) -> Container:
        """Return the caller's container; make it if there is none. It blocks: for a thread.

        Raises:
            HTTPException: 403, the request names no user.
            ContainersError: it cannot be made.
        """
        if not caller.is_user:
            raise HTTPException(403, "This key is for users: a request in a container names one (X-User-Id).")
        config, policy = self.containers.config, self.policy(caller.owner, caller.policy).get("data", {})
        minutes = policy.get("idle_timeout_minutes") or config.user_container_idle / 60
        spec = ContainerSpec(caller.room, policy.get("memory_tier"), minutes, origin=caller.origin)
        return self.containers.named(caller.owner, spec, config.max_user_containers)

    def is_current(self, id_: str) -> bool:
        """Return whether the host has a container's files as they are now."""
        return id_ not in self.containers.running() or self.containers.runtime.guest().shares_files

    @contextmanager
    def starting(self, caller: Caller, rank: int, there: int, most: int, refusal: str) -> Iterator[None]:
        """Count a command or shell while it starts, beside the `there` that are open in the container.

        Raises:
            HTTPException: 429, there are `most`.
        """
        key = (caller.owner, caller.room, rank)
        if there + self._starting[key] >= most:
            raise HTTPException(429, refusal)
        self._starting[key] += 1
        try:
            yield
        finally:
            self._starting[key] -= 1
            if not self._starting[key]:
                del self._starting[key]

    async def look(self, caller: Caller, work: Callable[[Sandbox], T]) -> T | None:
        """Do something short in the caller's sandbox, if it has one now; else return None."""

        def done() -> T | None:
            if row := self.find(caller):
                with self.containers.looked_at(row.id) as sandbox:
                    return work(sandbox) if sandbox else None
            return None

        return await aside(done)

    async def use(self, caller: Caller, work: Callable[[Sandbox], T]) -> T:
        """Do something short in the caller's sandbox, which is started if need be. Errors as for `ensure`."""

        def done() -> T:
            with self.containers.used(self.ensure(caller).id, PATIENCE) as (sandbox, _):
                return work(sandbox)

        return await aside(done)

    @contextmanager
    def held(self, caller: Caller) -> Iterator[tuple[Sandbox, str]]:
        """Hold the caller's sandbox for running code, with a note for the model. It blocks: for a thread."""
        with self.containers.held(self.ensure(caller).id, PATIENCE) as (interpreter, woken):
            note = woken.result()
            yield interpreter.as_sandbox, note

    # -- working directories ------------------------------------------------------------------------------------------

    def cwd(self, caller: Caller) -> str:
        """Return the working directory of the caller's chat."""
        return self._cwds.get(caller.place, HOME) if caller.session else HOME

    def change_cwd(self, caller: Caller, path: str) -> None:
        """Change it; without a chat nothing is noted."""
        if caller.session:
            self._cwds[caller.place] = path
            self._cwds.move_to_end(caller.place)
            if len(self._cwds) > MAX_CWDS:
                self._cwds.popitem(last=False)

    # -- policies -----------------------------------------------------------------------------------------------------

    def policy(self, owner: str, name: str) -> dict[str, Any]:
        """Return what is known of an owner's policy, {} if nothing is."""
        row = self._rows.get(WireValue, digest("terminal", owner, name), owner=owner) if name else None
        return dict(json.loads(row.value)) if row else {}

    def put_policy(self, owner: str, name: str, value: dict[str, Any]) -> None:
        """Write it anew."""
        id_, text = digest("terminal", owner, name), json.dumps(value)
        if not self._rows.change(WireValue, id_, value=text):
            self._rows.add(WireValue(id=id_, owner=owner, created_at=time.time(), value=text))

    def policies(self, owner: str) -> int:
        """Return the number of an owner's policies."""
        return self._rows.count(WireValue, owner=owner)


def rooms_of(request: HTTPConnection) -> Rooms:
    """Return the containers that requests are about."""
    rooms: Rooms = request.app.state.rooms
    return rooms


async def aside(work: Callable[..., T], *arguments: Any) -> T:
    """Do something that blocks, in a thread, and wait for its end."""
    return await in_thread(partial(work, *arguments), lambda: None)
