"""The host process that a sandbox belongs to, as text for labels and directory names that outlive it."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from agent_tools.machine.machine import is_zombie, machine_id, start_time

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
