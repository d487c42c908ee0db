"""Named containers: each has a database row, a folder of files, and a sandbox while it is in use or there is room.

If there is no room for another sandbox (sandbox_slots.py), the one unused for longest is parked: its files and
variables stay until the container expires, and its next sandbox loads the variables before any code runs
(kept_variables.py). If several processes share the rows and folders, only one of them has the sandbox (leases.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from agent_tools.containers.config import Config
from agent_tools.containers.container_locks import ContainerLocks
from agent_tools.containers.deletion import Endings, Remains
from agent_tools.containers.failures import (
    ContainerExists,
    ContainerExpired,
    ContainerNotDeleted,
    ContainerNotFound,
    ContainersError,
    KeyRevoked,
    NoSandbox,
    RowsAway,
    TooManyContainers,
)
from agent_tools.containers.ids import new_id
from agent_tools.containers.kept_variables import KeptVariables
from agent_tools.containers.leases import ContainerLeases
from agent_tools.containers.live_container import LiveContainer, TakenSandbox
from agent_tools.containers.network import check_network
from agent_tools.containers.records import ContainerRecord
from agent_tools.containers.rows import Before, Rows
from agent_tools.containers.sandbox_queue import SandboxQueue
from agent_tools.containers.sandbox_slots import Slots
from agent_tools.containers.shares import Shares
from agent_tools.containers.spec import ContainerSpec, audit_log, check_memory, sandbox_cfg, usual_cfg
from agent_tools.engines.volumes import Volume
from agent_tools.errors import AgentToolsError
from agent_tools.limits import Limits
from agent_tools.machine import folder
from agent_tools.machine.removal import remove_tree
from agent_tools.runtime.files.work_dir import prepare_work_dir
from agent_tools.sandbox.audit import AuditLog, AuditUnavailable, RunEnd
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.tools.tool_sandbox import ToolSandbox

if TYPE_CHECKING:
    from agent_tools.runtime.runtime import Runtime

Begun = TypeVar("Begun")
CHECK_SECONDS = 0.5  # seconds between two checks for a free slot


class Containers(Generic[Config]):
    """Makes, finds, expires and deletes containers, and hands out their sandboxes. Thread-safe.

    Attributes:
        name_of: returns the name of an owner's key or group, for the audit log.
        user_of: returns the identity provider's name for an owner, '' for the owner of a key; likewise.
        ended: called with the end of each run in a container, and the names of its owner.
        queue: the queue before sandboxes that run code.
        most_of: returns the number of containers that an owner may have at once.
        volumes_of: returns the volumes that an owner may use.
        may_use: returns whether an owner may use containers still. It changes before `stop` is called.
    """

    def __init__(
        self,
        config: Config,
        rows: Rows,
        runtime: Runtime,
        clock: Callable[[], float] = time.time,
        leases: ContainerLeases | None = None,
    ) -> None:
        self.config = config
        self.leases = leases or ContainerLeases(rows)
        self.runtime = runtime
        self.clock = clock
        self.shares = Shares(config, rows)
        self.name_of: Callable[[str], str] = lambda _: ""
        self.user_of: Callable[[str], str] = lambda _: ""
        self.ended: Callable[[ContainerRecord, Mapping[str, str], RunEnd], None] = lambda *_: None
        self.most_of: Callable[[str], int] = lambda _: config.max_containers
        self.volumes_of: Callable[[str], tuple[Volume, ...]] = lambda _: config.volumes
        self.may_use: Callable[[str], bool] = lambda _: True
        self._creating = ContainerLocks()  # by owner
        self.variables = KeptVariables(config)
        self.slots = Slots(config, self.variables, self)
        self.queue = SandboxQueue(config.max_sandboxes, config.most_of_key(config.max_sandboxes))
        remains = Remains(config.data_dir / "containers", rows)
        self._audit = audit_log(config)
        self.endings = Endings(rows, self.slots, self.variables, remains, self.leases, self._audit)
        self._rows = rows
        if config.pool:
            self.slots.soon(self._fill_pool)

    def create(self, owner: str, spec: ContainerSpec, id_: str | None = None) -> ContainerRecord:
        """Make a container; its sandbox starts with its first call.

        Raises:
            ContainersError: the memory or the network is more than allowed, there are too many, or no storage is left.
            ContainerExists: a container of this id exists, or of this name where names are unique.
            KeyRevoked: the owner may use containers no more.
        """
        memory, network = check_memory(spec.memory, self.config), check_network(spec.domains, self.config)
        self.check_room(owner)
        now = self.clock()
        container = ContainerRecord(
            id=id_ or new_id("cntr"),
            owner=owner,
            name=spec.name.replace("\0", "")[:256],
            created_at=now,
            last_active_at=now,
            idle_minutes=spec.idle_minutes or self.config.container_idle / 60,
            memory_limit=memory,
            network=network,
            status="active",
            has_run=False,
            bytes=0,
            origin=spec.origin,
            skills=spec.skills_text,
            volumes=spec.volumes,
        )
        self._add(container)
        return container

    def _add(self, container: ContainerRecord) -> None:
        path = self.folder(container.id)
        is_new = not path.exists()  # else the folder belongs to a container with this id
        try:
            prepare_work_dir(path, self.runtime.guest(path))
            self._add_row(container)
            self._audit_made(container)
        except BaseException:
            if is_new:
                remove_tree(path)
            raise

    def _add_row(self, container: ContainerRecord) -> None:
        owner = container.owner
        with self._creating.alone(owner):  # several at once could each find room for one
            if not self.may_use(owner):
                raise KeyRevoked
            self._check_number(owner)
            if not self._rows.add_if_new(container):
                raise ContainerExists

    def _audit_made(self, container: ContainerRecord) -> None:
        """Write to the audit log that a container was made; if that fails, delete the container."""
        owner = container.owner
        try:
            self._audit.write("container_made", owner=owner, **self._names(owner), container=container.id)
        except AuditUnavailable:
            self._rows.delete(ContainerRecord, id=container.id)
            raise

    def _names(self, owner: str) -> dict[str, str]:
        """Return the names of an owner for the audit log."""
        return {"key": self.name_of(owner), "user": self.user_of(owner)}

    def find_named(self, owner: str, origin: str, name: str) -> ContainerRecord | None:
        """Return the container that an owner has under a name; None if there is none. This does not count as use."""
        rows = self._rows.find(ContainerRecord, owner=owner, origin=origin, name=name, status="active")
        return next((row for row in rows if self.endings.expired(row, self.clock()).status == "active"), None)

    def named(self, owner: str, spec: ContainerSpec, most: int) -> ContainerRecord:
        """Return the container that an owner has under the name and origin of `spec`; make it if there is none.

        Its origin begins with `NAMED`: if several processes call this at once, one makes the container and the others
        find it. At `most` containers of this origin, or at the owner's limit, the one unused for longest is deleted.
        Errors as for `create`.
        """
        while (row := self.find_named(owner, spec.origin, spec.name)) is None:
            with suppress(ContainerExists):
                return self._made(owner, spec, most)
        return row

    def _made(self, owner: str, spec: ContainerSpec, most: int) -> ContainerRecord:
        if self._rows.count(ContainerRecord, owner=owner, origin=spec.origin, status="active") >= most:
            self.end_unused(owner, spec.origin)
        try:
            return self.create(owner, spec)
        except TooManyContainers:
            if not self.end_unused(owner, spec.origin):
                raise
            return self.create(owner, spec)

    def check_room(self, owner: str) -> None:
        """Check that an owner may have another container.

        Raises:
            TooManyContainers: the owner is at the limit.
            StorageFull: their files take the owner's whole share.
            DiskFull: the disk is nearly full.
        """
        self.shares.check_disk()
        self.shares.containers_left(owner)
        try:
            self._check_number(owner)
        except TooManyContainers:
            for row in self._rows.find(ContainerRecord, owner=owner, status="active"):
                self.endings.expired(row, self.clock())
            self._check_number(owner)

    def _check_number(self, owner: str) -> None:
        most = self.most_of(owner)
        if self._rows.count(ContainerRecord, owner=owner, status="active") >= most:
            raise TooManyContainers(f"You have {most:,} containers; delete one, or wait until one expires.")

    def end_unused(self, owner: str, origin: str) -> bool:
        """Delete the container of this origin that was unused for longest and has nothing running.

        Return False if there is none.
        """
        rows = self._rows.find(ContainerRecord, owner=owner, origin=origin, status="active")
        idle = [row for row in rows if not self.slots.is_in_use(row.id) and not self.leases.holder_elsewhere(row)]
        if not idle:
            return False
        with suppress(ContainersError):  # the container has ended anyway
            self.delete(owner, min(idle, key=lambda row: row.last_active_at).id)
        return True

    def find(self, owner: str, id_: str) -> ContainerRecord:
        """Return a container of this owner, expired or not.

        Raises:
            ContainerNotFound: there is no such container.
        """
        row = self._rows.get(ContainerRecord, id_, owner=owner)
        if row is None:
            raise ContainerNotFound(id_)
        return self.endings.expired(row, self.clock())

    def active(self, owner: str, id_: str) -> ContainerRecord:
        """Return a container of this owner that is not expired; this counts as use.

        Raises:
            ContainerNotFound: there is no such container.
            ContainerExpired: it is expired.
        """
        row = self.find(owner, id_)
        if row.status != "active":
            raise ContainerExpired()
        self.touch(id_)
        return row

    def touch(self, id_: str) -> None:
        """Record that a container is used now."""
        self.slots.touch(id_)
        self._rows.change(ContainerRecord, id_, last_active_at=self.clock())

    def all_of(self, owner: str) -> list[ContainerRecord]:
        """List all containers of an owner, oldest first."""
        rows = self._rows.find(ContainerRecord, owner=owner)
        return [self.endings.expired(row, self.clock()) for row in rows]

    def delete(self, owner: str, id_: str) -> None:
        """Delete a container with everything in it; running code is ended.

        Raises:
            ContainerNotFound: there is no such container.
            ContainerElsewhere: another process has its sandbox.
            ContainerNotDeleted: some of its files could not be deleted yet; the container has ended anyway.
        """
        if not self.endings.delete(self.find(owner, id_)):
            raise ContainerNotDeleted(
                "The container is deleted, but some of its files could not be removed yet; this is retried."
            )

    def discard(self, owner: str, id_: str) -> None:
        """Delete a container whose id was not returned to a client. Raises nothing: it would also expire later."""
        with suppress(ContainersError):
            self.delete(owner, id_)

    def sweep(self) -> int:
        """Expire containers that are due, remove ended ones, and delete rows of containers that expired long ago.

        Return the number of containers for which that failed; the next sweep tries again.
        """
        failed = self.endings.sweep(self.clock())
        long_ago = self.clock() - self.config.retention
        self._rows.delete(ContainerRecord, status="expired", last_active_at=Before(long_ago))
        self.slots.relieve()
        return failed

    def folder(self, id_: str) -> Path:
        """Return a container's work_dir, which exists until the container ends. Code may put anything into it."""
        return self.config.data_dir / "containers" / id_

    def measure(self, id_: str) -> int:
        """Count the bytes of a container's files, for its owner's share; the same write counts as use."""
        used = self._bytes(id_)
        self._rows.change(ContainerRecord, id_, bytes=used, last_active_at=self.clock())
        return used

    def _bytes(self, id_: str) -> int:
        limit = folder.FolderUsage(self.config.max_container_bytes, Limits().max_work_dir_entries, folder.MAX_LEVELS)
        return folder.usage(self.folder(id_), limit).bytes + self.variables.size(id_)

    # -- sandboxes ----------------------------------------------------------------------------------------------------

    @contextmanager
    def acquire(
        self, id_: str, timeout: float = 0.0, *, has_ticket: bool = False
    ) -> Iterator[tuple[ToolSandbox, Future[str]]]:
        """Acquire a container's sandbox, so that it stays; wait `timeout` seconds for a slot.

        Use it once the future is done: then its variables are loaded. The future's result is a note for the model, or
        ''. `has_ticket`: the caller entered `queue` before.

        Raises:
            ContainerExpired: the container has ended.
            ContainerElsewhere: another process has its sandbox.
            KeyRevoked: its owner may use containers no more.
            NoSandbox: no sandbox became free.
        """
        with nullcontext() if has_ticket else self.queue.slot(self._owner(id_), id_, timeout):
            live = self._live(id_, timeout)
            try:
                yield live.sandbox, live.woken
            finally:
                self.slots.release(id_, live)
                with suppress(RowsAway, OSError):  # the next use records it
                    self.measure(id_)

    def _owner(self, id_: str) -> str:
        row = self._rows.get(ContainerRecord, id_)
        if row is None:
            raise ContainerExpired()
        return row.owner

    @contextmanager
    def peek(self, id_: str) -> Iterator[Sandbox | None]:
        """Acquire the sandbox that a container has now; None if it has none.

        Does not count as use and takes no slot.
        """
        live = self.slots.acquire_if_running(id_)
        try:
            yield live.sandbox if live else None
        finally:
            if live:
                self.slots.release(id_, live, is_use=False)

    @contextmanager
    def use(self, id_: str, timeout: float = 0.0) -> Iterator[tuple[Sandbox, str]]:
        """Acquire a container's sandbox, started, for a short use beside code; with the note of `acquire`.

        A slot that runs code is needed only if the sandbox has to be started. Errors as for `acquire`.
        """
        if live := self.slots.acquire_if_running(id_):
            try:
                yield live.sandbox, ""
            finally:
                self.slots.release(id_, live)
                with suppress(RowsAway, OSError):
                    self.measure(id_)
            return
        with self.acquire(id_, timeout) as (sandbox, woken):
            note = woken.result()
            sandbox.start()
            yield sandbox, note

    @contextmanager
    def pin(self, id_: str, rank: int, begin: Callable[[Sandbox], Begun], timeout: float = 0.0) -> Iterator[Begun]:
        """Begin something that stays open in a container's sandbox, such as a shell, and keep the sandbox for it.

        It takes no slot that runs code and does not delay expiry; call `touch` when it is used. If there is no room
        for another sandbox, containers of the lowest rank are parked first, which ends everything open in them. Errors
        as for `acquire`.
        """
        with self.use(id_, timeout) as (sandbox, _):
            begun = begin(sandbox)
            live = self.slots.pin(id_, rank)
        try:
            yield begun
        finally:
            self.slots.unpin(live, rank)

    def _live(self, id_: str, timeout: float) -> LiveContainer:
        since = time.monotonic()
        while True:
            try:
                live = self.slots.take_sandbox(id_, partial(self._called, id_))
            except NoSandbox:
                if (left := since + timeout - time.monotonic()) <= 0:
                    raise
                self.slots.await_release(min(left, CHECK_SECONDS))
                continue
            if live:
                return live

    def _called(self, id_: str) -> TakenSandbox | None:
        row = self.leases.take_lease(id_, self.clock())
        if row and not self.may_use(row.owner):  # asked after the lease is taken, since `stop` finds earlier leases
            if id_ not in self.slots.generations():
                self.sandbox_gone(id_)
            raise KeyRevoked
        return TakenSandbox(partial(self._sandbox, row), row.generation, row.has_run) if row else None

    def _fill_pool(self) -> None:
        with suppress(AgentToolsError):  # the first container that needs the missing part reports it
            ToolSandbox(usual_cfg(self.config, self.folder("any")), runtime=self.runtime).prepare_pool()

    def _sandbox(self, row: ContainerRecord) -> ToolSandbox:
        room, volumes, names = (
            self.shares.containers_room(row.owner),
            self.volumes_of(row.owner),
            self._names(row.owner),
        )
        cfg = sandbox_cfg(self.config, row, self.folder(row.id), room, volumes, **names)
        cfg["audit"] = replace(cfg.get("audit", AuditLog()), ended=partial(self.ended, row, names))
        return ToolSandbox(cfg, runtime=self.runtime)

    def stop(self, owners: Collection[str]) -> None:
        """End all code in the containers of these owners; files stay until they expire."""
        for row in self.leases.of_this_process():
            if row.owner in owners:
                self.slots.drop(row.id, row.generation)

    def stop_one(self, id_: str, by: Mapping[str, str]) -> None:
        """End all code in a container of any owner, and its sandbox; files stay until it expires.

        `by` has the audit log's fields of who does that: `owner`, `key` and `user`.

        Raises:
            ContainerNotFound: there is no such container.
            ContainerElsewhere: another process has its sandbox.
            AuditUnavailable: the audit log cannot be written; nothing is stopped.
        """
        row = self._rows.get(ContainerRecord, id_, status="active")
        if row is None:
            raise ContainerNotFound(id_)
        self.leases.check_holder(row)
        self._audit.write("container_stopped", **by, container=id_)
        self.slots.drop(id_, row.generation)

    def sandbox_gone(self, id_: str) -> None:
        """Release a container without a sandbox to other processes."""
        with suppress(RowsAway):  # others may take it once this process has ended
            self.leases.release_lease(id_)

    def was_parked(self, id_: str) -> None:
        """Count the saved variables of a container, or delete them if the container has ended."""
        with suppress(RowsAway):  # the next use counts them
            if self._rows.get(ContainerRecord, id_, status="active") is None:
                self.variables.remove(id_)
            else:
                self._rows.change(ContainerRecord, id_, bytes=self._bytes(id_))

    def running(self) -> Mapping[str, bool]:
        """Return the containers that have a sandbox, each with True while it is in use."""
        return self.slots.running()

    def close(self) -> None:
        """Park every container: sandboxes are removed; files stay, and variables too where no code runs.

        Sandboxes of the pool are removed, too.
        """
        self.slots.close()
        self.runtime.close_pools()

    def tidy(self, id_: str, sandbox: ToolSandbox) -> None:
        """Close a sandbox whose container ended while it ran or started: it may have started again.

        If the container has ended, that start made its folder again, which is removed.
        """
        with suppress(RowsAway):  # the next sweep finds the folder
            self.endings.clear(id_, sandbox.close)
