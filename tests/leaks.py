"""A watch for what a test may not leave behind: containers, child processes, threads, descriptors and stray files.

Everything is compared with what was there before. Each run of the tests has a private folder for run directories and
temporary files, so that what is in it is ours, and so is every container that mounts something of it, whichever
process started it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from agent_tools.machine.owner import Owner, same_host
from agent_tools.machine.private_folder import remove_stale_run_dirs
from agent_tools.runtime.files.empty_work_dir import remove_stale_empty_work_dirs
from agent_tools.runtime.files.temp_work_dir import remove_stale_temp_work_dirs
from tests.nursery import nursery

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 30.0  # seconds given to what is already on its way out, such as a container that is being removed
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds between two looks: each takes time from what is on its way out
CHEAP_LOOKS = 3  # before garbage is collected, which takes longer than what ends by itself
_BY_THE_TOOLS = re.compile(
    r"\.coverage.*|\.(pytest|mypy|ruff|import_linter)_cache|\.hypothesis|\.benchmarks|__pycache__|.*\.lock"
)
_IDLE_WORKER = re.compile(r"Trio thread \d+")  # trio keeps them for ten seconds, for the next event loop
_HELPERS = {  # threads that begin when they are first needed, by the thread of the process with which they end
    re.compile(r"agent-tools-checks"): "agent-tools-rounds",
    re.compile(r"agent-tools-(lookup|pages|packages)_\d+"): "agent-tools-events",
}
_SHARED = re.compile(r"socket to .*/(docker|podman)[^/]*\.sock|.*\[eventpoll\]|.*/(random|urandom|null)")


class Scratch:
    """The private folder of this run of the tests: made once, removed at its end."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="agt-", dir="/tmp"))  # short: socket paths have 107 bytes
        (self.path / "tmp").mkdir()
        folders = {"TMPDIR": "tmp", "AGENT_TOOLS_RUN_DIR": ".", "XDG_STATE_HOME": "state"}
        self.environment = {name: str(self.path / folder) for name, folder in folders.items()}
        self._engine: Any = None

    def files(self) -> set[str]:
        """Run directories and temporary files, and what lies at the top of the checkout and of the current folder."""
        run_dirs = self.path / f"agent_tools-{os.getuid()}"
        folders = {self.path / "tmp", run_dirs, ROOT, Path.cwd()}
        return {
            f"{folder}/{name}" for folder in folders for name in _names(folder) if not _BY_THE_TOOLS.fullmatch(name)
        }

    def containers(self) -> set[str]:
        """Short ids of the containers of this process, and of all processes that were given the private folder."""
        if self._engine is None:
            self._engine = docker.APIClient(timeout=20, **docker.utils.kwargs_from_env())
        labels = [f"{name}={value}" for name, value in same_host().items()]
        found = self._engine.containers(all=True, filters={"label": labels})
        return {f"{each['Id'][:12]} ({each['Status']})" for each in found if self._is_ours(each)}

    def _is_ours(self, container: dict[str, Any]) -> bool:
        sources = [str(mount.get("Source", "")) for mount in container.get("Mounts") or ()]
        is_own = Owner.current().labels.items() <= (container.get("Labels") or {}).items()
        return is_own or any(source.startswith(f"{self.path}/") for source in sources)


@dataclass(frozen=True)
class Held:
    """All that this process holds at one moment, by kind, each thing with its name and how often it is there."""

    kinds: dict[str, Counter[str]]

    @classmethod
    def now(cls, scratch: Scratch, kinds: tuple[str, ...]) -> Held:
        """Look at these kinds alone: each look costs a test something."""
        looks: dict[str, Callable[[], Iterable[str]]] = {
            "container": lambda: (name.split()[0] for name in scratch.containers()),
            "sandbox": lambda: children(nursery().pid),
            "child process": lambda: children(os.getpid()),
            "thread": lambda: (thread.name for thread in _threads()),
            "descriptor": _descriptors,
            "file": scratch.files,
        }
        return cls({kind: Counter(looks[kind]()) for kind in kinds})

    def beyond(self, before: Held) -> list[str]:
        """Return what is here and was not there before, but for helpers that a wider fixture may have begun to need."""
        lasting = self.kinds.get("thread", Counter()) & before.kinds.get("thread", Counter())
        return [
            f"{kind}: {_named(kind, name)}" + (f" (x{count})" if count > 1 else "")
            for kind in self.kinds
            for name, count in sorted((self.kinds[kind] - before.kinds[kind]).items())
            if kind != "thread" or not any(each.fullmatch(name) and lasting[_HELPERS[each]] for each in _HELPERS)
        ]


ALL_KINDS = ("container", "sandbox", "child process", "thread", "descriptor", "file")


@contextlib.contextmanager
def nothing_left(
    scratch: Scratch, where: str, *, with_containers: bool, kinds: tuple[str, ...], patience: float = PATIENCE
) -> Iterator[None]:
    """Fail, and name it, if more is held after the block than before."""
    kinds = tuple(kind for kind in kinds if with_containers or kind != "container")
    before = Held.now(scratch, kinds)
    yield
    left, looks, pause = Held.now(scratch, kinds).beyond(before), 1, FIRST_PAUSE
    deadline = time.monotonic() + patience
    while left and time.monotonic() < deadline:
        if looks >= CHEAP_LOOKS:
            gc.collect()
            remove_stale_empty_work_dirs()
            remove_stale_run_dirs()  # of killed processes: the next process's first call does this
            remove_stale_temp_work_dirs()
        time.sleep(pause)
        left, looks, pause = Held.now(scratch, kinds).beyond(before), looks + 1, min(1.5 * pause, LONGEST_PAUSE)
    assert not left, f"{where} left behind: " + ", ".join(left)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def children(pid: int) -> Iterator[str]:
    """Yield the ids of the child processes of a process, zombies included."""
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as children:
            yield from children.read().split()


def _threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.is_alive() and not _IDLE_WORKER.fullmatch(each.name)]


def _named(kind: str, name: str) -> str:
    return f"{name} ({_command(name)})" if kind in ("sandbox", "child process") else name


def _command(pid: str) -> str:
    with contextlib.suppress(OSError):
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")[:200] or "ended"
        )
    return "ended"


def _descriptors() -> Iterator[str]:
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            name = _describe(int(fd))
            if not _SHARED.fullmatch(name) and not name.startswith("/proc/"):
                yield name


def _describe(fd: int) -> str:
    """A descriptor's name; the numbers of sockets and pipes are left out, which a fixture's fresh kernel changes."""
    name = os.readlink(f"/proc/self/fd/{fd}")
    if not name.startswith("socket:"):
        return re.sub(r"\[\d+\]", "", name)
    with contextlib.closing(socket.socket(fileno=os.dup(fd))) as copy:
        with contextlib.suppress(OSError):
            return f"socket to {copy.getpeername() or 'a peer without a name'}"
        return "socket"
