"""The state of the wire, and a request: its container, its rights there, and its paths."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from agent_tools.containers.containers import Containers
from agent_tools.containers.contents import Contents
from agent_tools.containers.records import NAMED, ContainerRecord, WireValue
from agent_tools.containers.rows import Rows
from agent_tools.containers.spec import ContainerSpec
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.open_resources import COMMAND, SHELL, OpenResources, Place, Processes, used
from agent_tools.wires.paths import Home
from agent_tools.wires.routing import Routes, WireRequest, aside, digest

HOME = "/workspace"
_HOME = Home(HOME, aliases=("/home/user", "/mnt/data", "~"))  # what models write for it
resolved, inside, in_sandbox, check_spared = _HOME.resolved, _HOME.inside, _HOME.in_sandbox, _HOME.check_spared
MAX_CWDS = 10_000
MAX_SHELLS, MAX_COMMANDS, MAX_NOTEBOOKS, MAX_ARCHIVES = 4, 16, 2, 4  # that are open in a container
_USER_HEADERS = ("x-user-id", "x-terminal-context-id")
_NO_USERS = ("", "system")  # users by whom Open WebUI means itself
T = TypeVar("T")


@dataclass(eq=False)
class Notebook:
    """A notebook that is open: its file and its kernel."""

    path: str
    sandbox: Sandbox
    count: int = 0
    is_busy: bool = False


class TerminalWire:
    """The state of the wire: open commands and shells, and working directories, by owner, container and chat."""

    def __init__(self, containers: Containers[Any], rows: Rows) -> None:
        self.containers = containers
        self.contents = Contents(containers, rows)
        self.rows = rows
        self.cwds: OrderedDict[Place, str] = OrderedDict()
        self.commands = Processes(containers, COMMAND, MAX_COMMANDS)
        self.shells = Processes(containers, SHELL, MAX_SHELLS, "shells")
        self.archives = Processes(containers, COMMAND, MAX_ARCHIVES, "archives")
        self.notebooks: OpenResources[Notebook] = OpenResources(
            containers, SHELL, MAX_NOTEBOOKS, "notebooks", lambda book: book.sandbox.close()
        )

    def policy(self, owner: str, name: str) -> dict[str, Any]:
        """Return an owner's policy of this name, {} if there is none."""
        row = self.rows.get(WireValue, digest("terminal", owner, name), owner=owner) if name else None
        return dict(json.loads(row.value)) if row else {}


class TerminalRequest(WireRequest):
    """A request, and the container of its user and chat. Reading never starts a container.

    Headers that name users and chats count only with a key that is for users; any other key has one user.

    Attributes:
        room: the name of the container: a digest of policy, user and context.
        origin: the origin of the user's containers: a digest of the user.
        session: the chat, '' for none. It names working directories, commands and shells within the container.
        policy: the operator's policy for the container, '' for none.
        is_user: a container may be made.

    Raises:
        HTTPException: 401, no key was sent.
    """

    wire: TerminalWire

    def __init__(self, request: HTTPConnection) -> None:
        super().__init__(request)
        if not self.owner:
            raise HTTPException(401, "Send a key: 'Authorization: Bearer KEY'.")
        headers, for_users = request.headers, request.scope["for_users"]
        user, context = (headers.get(name, "") if for_users else "" for name in _USER_HEADERS)
        self.policy: str = request.path_params.get("policy", "") if for_users else ""
        self.room = digest(self.policy, user, context)[:40]
        self.origin = f"{NAMED}{digest(user)[:14]}"
        self.session = headers.get("x-session-id", "")[:128]
        self.is_user = not for_users or user not in _NO_USERS

    @property
    def place(self) -> Place:
        """The key of what belongs to the chat."""
        return self.owner, self.room, self.session

    def find(self) -> ContainerRecord | None:
        """Return the caller's container; None if there is none. This does not count as use."""
        return self.wire.containers.find_named(self.owner, self.origin, self.room) if self.is_user else None

    def ensure(self) -> str:
        """Return the id of the caller's container; make it if there is none.

        Raises:
            HTTPException: 403, the request names no user.
            ContainersError: it cannot be made.
        """
        if not self.is_user:
            raise HTTPException(403, "This key is for users: a request in a container names one (X-User-Id).")
        config, tier = self.wire.containers.config, self.wire.policy(self.owner, self.policy).get("tier")
        spec = ContainerSpec(self.room, tier, config.user_container_idle / 60, origin=self.origin)
        return self.wire.containers.named(self.owner, spec, config.max_user_containers).id

    async def query_files(
        self, path: str, running: Callable[[Sandbox], T], parked: Callable[[str, str], T | None]
    ) -> T:
        """Return what `running` finds in the caller's sandbox; if none runs, what `parked` finds in HOME on the host.

        Raises:
            FileNotFoundError: nothing is found.
        """

        def found() -> T | None:
            row, name = self.find(), inside(path)
            if row is None:
                return None
            with self.wire.containers.peek(row.id) as sandbox:
                if sandbox:
                    return running(sandbox)
            return None if name is None else parked(row.id, name)

        if (result := await aside(found)) is None:
            raise FileNotFoundError
        return result

    async def use(self, work: Callable[[Sandbox], T]) -> T:
        """Run a short function on the caller's sandbox, which is started if needed. Errors as for `ensure`."""
        return await used(self.wire.containers, self.ensure, work)

    async def write(self, path: str, content: bytes | BinaryIO) -> None:
        """Write a file, and the folders above it. Errors as for `use`."""
        await self.use(lambda sandbox: sandbox.write_file(in_sandbox(path), content))

    def path(self, path: str) -> str:
        """Return a path as an absolute one; a relative one counts from the working directory of the chat."""
        return resolved(path, self.cwd)

    @property
    def cwd(self) -> str:
        """The working directory of the chat."""
        return self.wire.cwds.get(self.place, HOME)

    def change_cwd(self, path: str) -> None:
        """Change it."""
        self.wire.cwds[self.place] = path
        self.wire.cwds.move_to_end(self.place)
        if len(self.wire.cwds) > MAX_CWDS:
            self.wire.cwds.popitem(last=False)


ROUTES = Routes(TerminalRequest)
"""All routes of callers, which the files of this folder add to."""
