"""The host process that a sandbox belongs to, as text for labels and directory names that outlive it."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from agent_tools.errors import EngineError
from agent_tools.machine.folder import OPEN_DIR
from agent_tools.machine.machine import is_zombie, machine_id, start_time
from agent_tools.machine.removal import remove_tree
from agent_tools.settings import runtime_dir

T = TypeVar("T")

NAME_LABEL = "agent_tools.name"  # a random name, by which a sandbox is found when its id is not known
UNKNOWN = "unknown"  # stands for an unidentifiable machine: sandboxes with this label are never orphans
CLAIM = "claim-"  # prefix of files beside the run directories that are claims on work_dirs
_TOKEN = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


@dataclass(frozen=True)
class Owner:
    """A process of this machine.

    Boot id and PID namespace identify the machine; the start time distinguishes reused pids.
    """

    host: str
    pid: int
    start: int

    @classmethod
    def current(cls) -> Owner:
        """The calling process."""
        return cls(_host(), os.getpid(), start_time(os.getpid()) or 0)

    @property
    def token(self) -> str:
        """A file name part."""
        return f"{self.pid}-{self.start}"

    @property
    def labels(self) -> dict[str, str]:
        """The labels by which a sandbox is found again."""
        return {"agent_tools.host": self.host, "agent_tools.owner": self.token, **_user()}


def same_host() -> dict[str, str]:
    """The label by which this machine's sandboxes are found."""
    return {"agent_tools.host": _host()}


def same_user() -> dict[str, str]:
    """The labels by which this user's sandboxes on this machine are found: others remove their own."""
    return {**same_host(), **_user()}


def is_orphan(labels: Mapping[str, str]) -> bool:
    """Return whether the owner in a sandbox's labels is certainly gone; False if this cannot be verified."""
    host = labels.get("agent_tools.host")
    return host == _host() != UNKNOWN and _is_gone(labels.get("agent_tools.owner", ""))


def orphans(found: Iterable[tuple[T, Mapping[str, str]]]) -> list[T]:
    """Return the ids, of ids with labels, whose owner is certainly gone; each owner is checked once."""
    is_gone = functools.cache(lambda labels: is_orphan(dict(labels)))
    names = ("agent_tools.host", "agent_tools.owner")
    return [each for each, labels in found if is_gone(tuple((name, labels.get(name, "")) for name in names))]


def owner_is_gone(name: str) -> bool:
    """Return whether the process in the name of a run directory or claim is certainly gone."""
    return _is_gone("-".join(name.removeprefix(CLAIM).split("-")[:2]))


def _is_gone(token: str) -> bool:
    pid, _, start = token.partition("-")
    if not _TOKEN.fullmatch(token):
        return False
    if is_zombie(int(pid)):  # a zombie stays for good if PID 1 reaps nothing, as in many containers
        return True
    now = start_time(int(pid))
    return now != int(start) if now is not None else not _exists(int(pid))


def _exists(pid: int) -> bool:
    """Return whether a process exists, even if /proc hides processes of other users."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _host() -> str:
    return machine_id() or UNKNOWN


def _user() -> dict[str, str]:
    return {"agent_tools.user": str(os.getuid())}


# The private folder of this user for files that belong to sandboxes.


def private_base(folder: Path | None = None) -> Path:
    """Return the folder of all run directories, or another private folder of this user, made if missing.

    Raises:
        EngineError: it cannot be made, or is not the caller's own.
    """
    base = folder or runtime_dir()
    advice = "remove it or set AGENT_TOOLS_RUN_DIR to another place"
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.stat(base, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise EngineError(f"{base} is not a folder of yours; {advice}.")
        if stat.S_IMODE(found.st_mode) & 0o077:
            base.chmod(0o700)
    except OSError as exc:
        raise EngineError(f"{base} cannot be used ({exc.strerror}); {advice}.") from exc
    return base


def remove_stale_run_dirs() -> list[Path]:
    """Delete the run directories and the claims of processes that are gone; return their paths.

    Their base lies where others may write, too: a folder that others made or may change is ignored.
    """
    base, removed = runtime_dir(), []
    with contextlib.suppress(OSError), opened_own(base) as folder, os.scandir(folder) as entries:
        for entry in list(entries):
            is_ours = not entry.is_symlink() and entry.stat(follow_symlinks=False).st_uid == os.getuid()
            if is_ours and owner_is_gone(entry.name):
                remove_tree(entry.name, dir_fd=folder)
                removed.append(base / entry.name)
    return removed


@contextlib.contextmanager
def opened_own(path: Path) -> Iterator[int]:
    """Return a descriptor of a folder that belongs to the caller and that no other user may write to.

    Raises:
        OSError: it is not such a folder.
    """
    folder = os.open(path, OPEN_DIR)
    try:
        found = os.fstat(folder)
        if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        yield folder
    finally:
        os.close(folder)
