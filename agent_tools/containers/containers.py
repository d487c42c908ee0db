"""Containers: each has a row, a folder of files, and, while it is in use or there is room, a sandbox.

There are at most `max_sandboxes` sandboxes. When another needs a place, the one that was unused for longest is parked:
its files stay until the container itself expires, and so do its variables, which its next sandbox gets before any code
runs in it (kept_variables.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Generic

from agent_tools.containers.config import MEMORY_TIERS, Config
from agent_tools.containers.failures import (
    ContainerExpired,
    ContainerNotDeleted,
    ContainerNotFound,
    ContainersError,
    MemoryRefused,
    TooManyContainers,
)
from agent_tools.containers.ids import new_id
from agent_tools.containers.kept_variables import KeptVariables
from agent_tools.containers.networks import check_network
from agent_tools.containers.places import Places
from agent_tools.containers.records import Container
from agent_tools.containers.remains import Ending, Remains
from agent_tools.containers.rows import Before, Rows
from agent_tools.containers.shares import Shares
from agent_tools.containers.spec import ContainerSpec, interpreter_cfg, usual_cfg
from agent_tools.containers.sweeping import failures
from agent_tools.errors import AgentToolsError
from agent_tools.runtime.files import folder
from agent_tools.runtime.files.work_dir import prepare_work_dir
from agent_tools.runtime.sessions import RuntimeLike
from agent_tools.settings import Limits
from agent_tools.tools.code_interpreter import CodeInterpreter


class Containers(Generic[Config]):
    """Makes, finds, expires and deletes containers, and hands out their interpreters. Thread-safe.

    Attributes:
        most_of: returns the number of containers that an owner may have at once.
    """

    def __init__(
        self, config: Config, rows: Rows, runtime: RuntimeLike, clock: Callable[[], float] = time.time
    ) -> None:
        self.config = config
        self.runtime = runtime
        self.clock = clock
        self.shares = Shares(config, rows)
        self.most_of: Callable[[str], int] = lambda _: config.max_containers
        self.remains = Remains(config.data_dir / "containers", rows)
        self.variables = KeptVariables(config)
        self.places = Places(config, self.variables, self)
        self._rows = rows
        if config.pool:
            self.places.soon(self._fill_pool)

    def create(self, owner: str, spec: ContainerSpec, id_: str | None = None) -> Container:
        """Make a container; its sandbox starts with its first call.

        Raises:
            ContainersError: the memory or the network is more than allowed, there are too many, or no storage is left.
        """
        memory, network = self.check_memory(spec.memory), check_network(spec.domains, self.config)
        self.check_room(owner)
        now = self.clock()
        container = Container(
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
        )
        path = self.folder(container.id)
        prepare_work_dir(path, self.runtime.guest(path))
        self._rows.add(container)
        return container

    def check_room(self, owner: str) -> None:
        """Check that an owner may have another container.

        Raises:
            TooManyContainers: there are too many.
            StorageFull: their files take the owner's whole share.
            DiskFull: nothing more is kept for anyone.
        """
        self.shares.check_disk()
        self.shares.containers_left(owner)
        most = self.most_of(owner)
        if self._rows.count(Container, owner=owner, status="active") >= most:
            self.sweep()
            if self._rows.count(Container, owner=owner, status="active") >= most:
                raise TooManyContainers(f"You have {most:,} containers; delete one, or wait until one expires.")

    def end_unused(self, owner: str, name: str) -> bool:
        """Delete the container of this name that was unused for longest, and holds nothing that runs.

        Return False if there is none.
        """
        rows = self._rows.find(Container, owner=owner, name=name, status="active")
        idle = [row for row in rows if not self.places.is_held(row.id)]
        if not idle:
            return False
        with suppress(ContainersError):  # it is over all the same
            self.delete(owner, min(idle, key=lambda row: row.last_active_at).id)
        return True

    def check_memory(self, memory: str | None) -> str:
        """Return the memory tier of this name, or the usual one.

        Raises:
            MemoryRefused: there is no such tier, or this gateway does not give it.
        """
        tier = memory or self.config.memory
        if tier not in MEMORY_TIERS or MEMORY_TIERS[tier] > MEMORY_TIERS[self.config.max_memory]:
            allowed = [name for name, size in MEMORY_TIERS.items() if size <= MEMORY_TIERS[self.config.max_memory]]
            raise MemoryRefused(f"memory_limit {tier!r:.20} is not available here: use {', '.join(allowed)}.")
        return tier

    def find(self, owner: str, id_: str) -> Container:
        """Return a container of this owner, expired or not.

        Raises:
            ContainerNotFound: there is no such container.
        """
        row = self._rows.get(Container, id_, owner=owner)
        if row is None:
            raise ContainerNotFound(id_)
        return self._expired(row) if self._is_due(row) else row

    def active(self, owner: str, id_: str) -> Container:
        """Return a container of this owner that is not expired; asking for it counts as use.

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
        """Note that a container is used now."""
        self._rows.change(Container, id_, last_active_at=self.clock())

    def all_of(self, owner: str) -> list[Container]:
        """List all containers of an owner, oldest first."""
        rows = self._rows.find(Container, owner=owner)
        return [self._expired(row) if self._is_due(row) else row for row in rows]

    def delete(self, owner: str, id_: str) -> None:
        """Delete a container with all it holds; code that runs in it ends.

        Raises:
            ContainerNotFound: there is no such container.
            ContainerNotDeleted: some of its files could not be deleted yet. The container is over all the same.
        """
        self.find(owner, id_)
        if not self._end(id_, "deleting"):
            raise ContainerNotDeleted(
                "The container is over, but some of its files could not be deleted yet; that is tried again."
            )

    def sweep(self) -> int:
        """Expire the containers that are due, finish those that are over, and forget those that expired long ago.

        Return the number of containers for which that failed; the next sweep tries again.
        """
        failed = sum(failures(partial(self._end_again, *each)) for each in self.remains.unfinished())
        for row in self._rows.find(Container, status="active"):
            failed += failures(partial(self._end_if_due, row))
        long_ago = self.clock() - self.config.retention
        self._rows.delete(Container, status="expired", last_active_at=Before(long_ago))
        return failed

    def folder(self, id_: str) -> Path:
        """Return a container's work_dir, which exists until the container is over. Code may put anything into it."""
        return self.config.data_dir / "containers" / id_

    def measure(self, id_: str) -> int:
        """Count the bytes of a container's files, for its owner's share; the same write counts as use."""
        used = self._bytes(id_)
        self._rows.change(Container, id_, bytes=used, last_active_at=self.clock())
        return used

    def _bytes(self, id_: str) -> int:
        limit = folder.Usage(self.config.max_container_bytes, Limits().max_work_dir_entries, folder.MAX_LEVELS)
        return folder.usage(self.folder(id_), limit).bytes + self.variables.size(id_)

    # -- sandboxes ----------------------------------------------------------------------------------------------------

    @contextmanager
    def held(self, id_: str) -> Iterator[tuple[CodeInterpreter, Future[str]]]:
        """Hold a container's interpreter, so that its sandbox stays.

        It may be used once the future is there: its variables are back then. The result is what a model is told of
        that, '' if there is nothing to tell.

        Raises:
            ContainerExpired: the container is over.
            NoSandbox: every sandbox is held.
        """
        live = self.places.take(id_, partial(self._called, id_))
        try:
            self._rows.change(Container, id_, has_run=True, last_active_at=self.clock())
            yield live.interpreter, live.woken
        finally:
            self.places.release(id_, live)
            with suppress(self._rows.failure):  # the next use of it will do
                self.measure(id_)

    def start_soon(self, id_: str, interpreter: CodeInterpreter) -> None:
        """Start the sandbox of a held interpreter, in a thread. A failure comes again at the run, which tells of it."""
        self.places.start(id_, interpreter)

    def _called(self, id_: str) -> tuple[Callable[[], CodeInterpreter], bool]:
        """Return what makes an interpreter for a container that is called, and whether it has run code before."""
        row = self._rows.get(Container, id_, status="active")
        if row is None:
            raise ContainerExpired()
        return partial(self._interpreter, row), row.has_run

    def _fill_pool(self) -> None:
        with suppress(AgentToolsError):  # the first container that needs what is missing says so
            CodeInterpreter(usual_cfg(self.config, self.folder("any")), runtime=self.runtime).as_sandbox.prepare_pool()

    def _interpreter(self, row: Container) -> CodeInterpreter:
        cfg = interpreter_cfg(self.config, row, self.folder(row.id), self.shares.containers_room(row.owner))
        return CodeInterpreter(cfg, runtime=self.runtime)

    def was_parked(self, id_: str) -> None:
        """Count what was kept of a container, or forget it if the container is over."""
        with suppress(self._rows.failure):  # the next use of it will count
            if self._rows.get(Container, id_, status="active") is None:
                self.variables.remove(id_)
            else:
                self._rows.change(Container, id_, bytes=self._bytes(id_))

    def running(self) -> Mapping[str, bool]:
        """Return the containers that have a sandbox, each with True while it is held."""
        return self.places.running()

    def close(self) -> None:
        """Park every container: no sandbox is left, files stay, and so do variables where nothing runs any more.

        Those that were made ahead go, too.
        """
        self.places.close()
        self.runtime.close_pools()

    # -- the end of a container ---------------------------------------------------------------------------------------

    def _is_due(self, row: Container) -> bool:
        if row.status != "active":
            return False
        return not self.places.is_held(row.id) and self.clock() > row.last_active_at + row.idle_minutes * 60

    def _expired(self, row: Container) -> Container:
        self._end(row.id, "expiring")
        return replace(row, status="expired")

    def _end_if_due(self, row: Container) -> int:
        return int(self._is_due(row) and not self._end(row.id, "expiring"))

    def _end_again(self, id_: str, ending: Ending) -> int:
        return int(not self._end(id_, ending))

    def _end(self, id_: str, ending: Ending) -> bool:
        """Close a container's sandbox, remove its files, then mark it deleted or expired; False if files stay."""
        if not self.places.end(id_, partial(self.remains.begin, id_, ending), even_if_held=ending == "deleting"):
            return True  # just now it was due
        self.variables.remove(id_)
        return self.remains.finish(id_, ending)

    def tidy(self, id_: str, interpreter: CodeInterpreter) -> None:
        """Close an interpreter whose container ended while it ran or started: its sandbox may have started again.

        If the container is over, that made its folder again, which is removed.
        """
        interpreter.close()
        with suppress(self._rows.failure):  # a sweep finds the folder again
            if self._rows.get(Container, id_, status="active") is None:
                self.variables.remove(id_)
                self.remains.remove_files(id_)
