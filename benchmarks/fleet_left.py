"""What a cluster leaves behind that was used and killed: containers, slots, folders, processes, descriptors."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from fleet_caller import use
from machine import command, descriptors, processes_with

from agent_tools.engines.ray.cluster import NodeFacts, facts_of, running
from agent_tools.runtime.files.temp_work_dir import remove_stale_temp_work_dirs
from agent_tools.runtime.runtime import Runtime
from tests.leaks import Scratch

GONE_SECONDS = 30.0
"""Seconds in which everything is to be gone."""
KEPT_DESCRIPTORS = 24
"""Descriptors that a process of Ray's may have more than one that has just begun: connections to others."""


@contextlib.contextmanager
def own_folder() -> Iterator[Scratch]:
    """Have all that is started from now on know a private folder; Ray's own files lie elsewhere."""
    scratch = Scratch()
    os.environ.update(scratch.environment, RAY_TMPDIR="/tmp")
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch.path, ignore_errors=True)


def left_in_cluster(runtime: Runtime, nodes: int, scratch: Scratch, before: int) -> list[str]:
    """Return what there is half a minute after the last use, where the cluster goes on."""
    left: list[str] = []

    def slots() -> list[str]:
        found = facts()
        taken = [f"a node has {each.taken} slots taken" for each in found if each.taken]
        return taken if len(found) == nodes else [*taken, f"{len(found)} nodes answer"]

    left += _until_none(slots)
    left += _until_none(lambda: sorted(f"container {each}" for each in scratch.containers()))
    left += _until_none(lambda: [f"folder {name}" for name in _folders(scratch) if not _is_base(name, pids())])
    gc.collect()
    if (now := descriptors(os.getpid())) > before + KEPT_DESCRIPTORS:
        left.append(f"{now} descriptors of the caller, {before} before")
    left += _descriptors_of_nodes(runtime, nodes)
    return left


def _descriptors_of_nodes(runtime: Runtime, nodes: int) -> list[str]:
    """Return nodes whose processes hold more descriptors than the fresh ones that follow them, after a use of each."""
    killed = pids()
    old = [descriptors(pid) for pid in killed]
    for pid in killed:
        kill(pid)
    until(lambda: len(found := pids()) == nodes and not set(found) & set(killed), 120)
    for _ in range(2 * nodes):
        use(runtime)
    fresh = [descriptors(pid) for pid in pids()]
    print(f"descriptors of the nodes' processes at the end: {old}; of fresh ones after two uses each: {fresh}")
    until(lambda: not any(each.taken for each in facts()), GONE_SECONDS)
    return [
        f"{count} descriptors of a node's process" for count in old if count > max(fresh, default=0) + KEPT_DESCRIPTORS
    ]


def left_on_machine(scratch: Scratch) -> list[str]:
    """Return what there is once the cluster has ended too, and the next process has looked for what others left."""
    left = _until_none(
        lambda: [f"process {pid}: {command(pid)[:60]}" for pid in processes_with("AGENT_TOOLS_RUN_DIR", scratch.path)]
    )
    left += _until_none(lambda: sorted(f"container {each}" for each in scratch.containers()))
    remove_stale_temp_work_dirs()
    return left + _until_none(lambda: [f"folder {name}" for name in _folders(scratch)])


def _folders(scratch: Scratch) -> list[str]:
    """Return what lies in the private folder: run directories, work_dirs and the folders of nodes' processes."""
    return sorted(name for name in scratch.files() if name.startswith(str(scratch.path)))


def _is_base(name: str, pids: list[int]) -> bool:
    """Return whether a folder is a living node's own, with nothing in it."""
    is_a_nodes = any(f"agent-tools-{pid}-" in name for pid in pids)
    return is_a_nodes and not (os.path.isdir(name) and os.listdir(name))


def until(is_so: Callable[[], Any], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not (found := is_so()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return bool(found)


def _until_none(left: Callable[[], list[str]]) -> list[str]:
    """Wait until nothing is left, for as long as it may take; return what is left all the same."""
    return [] if until(lambda: not left(), GONE_SECONDS) else left()


def kill(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def facts() -> list[NodeFacts]:
    """Return the facts of the nodes that answer."""
    found = []
    for actor in running().values():
        with contextlib.suppress(Exception):
            found.append(facts_of(actor))
    return found


def pids() -> list[int]:
    """Return the processes of the nodes that answer."""
    return [each.pid for each in facts()]
