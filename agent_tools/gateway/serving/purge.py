"""Deletes everything that one owner has: containers with their files and variables, uploads, and all rows.

The sandbox of a container belongs to one gateway, which ends it and removes the container in its next sweep.
Everything else is deleted here: at once, and again at the end, since a response may be stored after its key was
revoked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from agent_tools.containers.deletion import Remains
from agent_tools.containers.records import ContainerRecord
from agent_tools.containers.rows import MANY
from agent_tools.gateway.chunked import remove_uploads_of
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.membership import is_gone
from agent_tools.gateway.named_keys import READ_EVERY
from agent_tools.gateway.skills import sweep_copies
from agent_tools.gateway.store.records import GatewayRow, StoredEvents
from agent_tools.gateway.store.store import Store
from agent_tools.machine.removal import remove_tree

END_TIMEOUT = 60.0  # seconds in which gateways end the owner's containers
_SETTLE = READ_EVERY + 4.0  # seconds in which a gateway has read that a key was revoked, and ended its responses


def purge(config: GatewayConfig, store: Store, owner: str, wait: Callable[[float], object] = time.sleep) -> int:
    """Delete all that an owner has, whose key was revoked before; return the number of containers that are left."""
    alive = _delete(config, store, owner)
    if alive:
        wait(_SETTLE)
    deadline = time.monotonic() + END_TIMEOUT
    while (left := store.count(ContainerRecord, owner=owner)) and time.monotonic() < deadline:
        wait(1.0)
        _end_containers(config, store, owner)
    _delete(config, store, owner)
    return left


def _delete(config: GatewayConfig, store: Store, owner: str) -> bool:
    """Delete what is not in use; return True if a gateway is alive."""
    is_alive = _end_containers(config, store, owner)
    ids = list(store.delete_owned(owner))
    for start in range(0, len(ids), MANY):
        store.delete(StoredEvents, id=ids[start : start + MANY])
    _remove_files(config.data_dir, set(ids))
    remove_uploads_of(owner, config.data_dir)
    sweep_copies(config, store, 0.0)
    return is_alive


def _end_containers(config: GatewayConfig, store: Store, owner: str) -> bool:
    """Mark the owner's containers, and remove the ones without a gateway; return True if a gateway is alive."""
    now = time.time()
    alive = {row.id for row in store.find(GatewayRow) if not is_gone(row, now)}
    remains = Remains(config.data_dir / "containers", store)
    for row in store.find(ContainerRecord, owner=owner):
        remains.begin(row.id, "deleting")
        if row.gateway not in alive:
            _remove_files(config.data_dir, {row.id})
            remains.finish(row.id, "deleting")
    return bool(alive)


def _remove_files(data_dir: Path, ids: set[str]) -> None:
    """Remove files named after one of these ids, in the folders of `data_dir`."""
    for folder in data_dir.iterdir():
        if folder.is_dir() and not folder.is_symlink():
            for path in list(folder.iterdir()):
                if path.name.partition(".")[0] in ids:
                    remove_tree(path)
