"""Volumes: folders that the operator names and that sandboxes see at /volumes/NAME, outside of work_dir.

A volume's source is a folder of this machine, or the name of a volume that the engine has: a Docker volume, or a
persistent volume claim. Clients and models only know names.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_tools.engines.guest import Guest
from agent_tools.errors import InvalidParams
from agent_tools.guest.wire.words import WORK_DIR_NAMES
from agent_tools.limits import GIB, MIB, size_of, size_text
from agent_tools.machine.folder import open_folder
from agent_tools.machine.foreign_sockets import foreign_socket
from agent_tools.machine.guest_ids import GUEST_UIDS
from agent_tools.machine.unsafe_folders import objection, overlap

GUEST_VOLUMES = "/volumes"
DEFAULT_BYTES = 10 * GIB
MAX_VOLUMES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_ENGINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
_ENGINE_TREES = ("/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet")
_PATH = re.compile(r"/(?:mnt|volumes)/[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_HOW = "write NAME=FOLDER, NAME=FOLDER:rw or NAME=FOLDER:rw:20g, with commas between volumes"


@dataclass(frozen=True)
class Volume:
    """A volume, checked by `read_volumes`.

    Attributes:
        name: its name for clients and code.
        source: the absolute path of a folder of this machine, or the name of a volume of the engine.
        is_writable: whether code may write to it.
        max_bytes: bytes on disk that a writable folder may come to hold; an engine's volume has its own size.
        path: where code sees it; '' for /volumes/NAME.
    """

    name: str
    source: str
    is_writable: bool = False
    max_bytes: int = DEFAULT_BYTES
    path: str = ""

    def __str__(self) -> str:
        size = f":{self.max_bytes}" if self.is_writable and self.folder else ""
        return f"{self.name}={self.source}:{'rw' if self.is_writable else 'ro'}{size}"

    @property
    def target(self) -> str:
        """The path at which code sees it."""
        return self.path or f"{GUEST_VOLUMES}/{self.name}"

    @property
    def folder(self) -> Path | None:
        """The folder of this machine; None for an engine's volume."""
        return Path(self.source) if self.source.startswith("/") else None

    def group_for(self, guest: Guest) -> int | None:
        """Return the group that a guest needs to use the folder; None if it needs none.

        Raises:
            InvalidParams: the folder's permissions keep this guest out.
        """
        if self.folder is None:
            return None
        facts = self.folder.stat()
        uid, gid = guest.host_ids
        may_join = guest.container_ids == guest.host_ids and (os.getuid() == 0 or facts.st_gid in os.getgroups())
        needed = 7 if self.is_writable else 5
        if uid == facts.st_uid:
            bits, group = facts.st_mode >> 6, None
        elif gid == facts.st_gid:
            bits, group = facts.st_mode >> 3, None
        elif may_join and facts.st_gid and facts.st_mode & 0o070:
            bits, group = facts.st_mode >> 3, facts.st_gid
        else:
            bits, group = facts.st_mode, None
        if bits & needed != needed:
            raise InvalidParams(
                f"Volume {self.name}: {self.source} ({stat.filemode(facts.st_mode)}) is closed to the user of "
                f"sandboxes ({uid}). Give it a group, other than root's, that may use it: chgrp GROUP {self.source}; "
                f"chmod {'2770' if self.is_writable else '2750'} {self.source}."
            )
        return group


def read_volumes(given: object) -> tuple[Volume, ...]:
    """Return volumes from text ('data=/srv/data,shared=/srv/shared:rw:20g'), a list of such, or a mapping by name.

    Volumes that were read already are not checked again.

    Raises:
        InvalidParams: one cannot be used.
    """
    found = [each if isinstance(each, Volume) else _checked(*each) for each in _parts(given)]
    if len(found) > MAX_VOLUMES:
        raise InvalidParams(f"volumes has {len(found)} entries, more than {MAX_VOLUMES}.")
    for first, second in itertools.combinations(found, 2):
        _refuse_pair(first, second)
    return tuple(found)


def chosen(volumes: Iterable[Volume], names: Iterable[str]) -> tuple[Volume, ...]:
    """Return the volumes of these names. A name may have the path at which code sees it: 'data=/mnt/data-2'."""
    wanted = dict(_split(each) for each in names)
    return tuple(
        Volume(each.name, each.source, each.is_writable, each.max_bytes, wanted[each.name])
        for each in volumes
        if each.name in wanted
    )


def check_path(volume: str, path: str) -> str:
    """Return the text of a volume that a client wants to see at a path, for `chosen`.

    Raises:
        InvalidParams: volumes cannot be there.
    """
    if path == f"{GUEST_VOLUMES}/{volume}":
        return volume
    if not _PATH.fullmatch(path) or path in WORK_DIR_NAMES or path.startswith(GUEST_VOLUMES):
        raise InvalidParams(f"A volume cannot be at {path!r:.80}: give {GUEST_VOLUMES}/{volume}, or /mnt/NAME.")
    return f"{volume}={path}"


def with_volumes(description: str, volumes: Sequence[Volume]) -> str:
    """Return the description of a tool, with the volumes that its code sees."""
    if not volumes:
        return description
    listed = ", ".join(f"{each.target} ({_rights(each)})" for each in volumes)
    return f"{description} Folders beside the working folder: {listed}."


def _rights(volume: Volume) -> str:
    if not volume.is_writable:
        return "read-only"
    return f"writable, {size_text(volume.max_bytes)}" if volume.folder else "writable"


def _split(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    return name, path


def _parts(given: object) -> list[Volume | tuple[str, str]]:
    """Return each volume, or its name and its text."""
    if isinstance(given, str):
        given = [each for each in given.split(",") if each.strip()]
    if isinstance(given, Mapping):
        return list(given.items())
    if not isinstance(given, (list, tuple)):
        raise InvalidParams(f"volumes={given!r:.80} is not usable: {_HOW}.")
    found: list[Volume | tuple[str, str]] = []
    for each in given:
        if not isinstance(each, Volume) and (not isinstance(each, str) or "=" not in each):
            raise InvalidParams(f"volumes has {each!r:.80}: {_HOW}.")
        found.append(each if isinstance(each, Volume) else _split(each.strip()))
    return found


def _checked(name: object, text: object) -> Volume:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidParams(f"volumes has {name!r:.80}, which is no name: use up to 40 of a-z, A-Z, 0-9, '_' and '-'.")
    if isinstance(text, os.PathLike):
        text = os.fspath(text)
    if not isinstance(text, str):
        raise InvalidParams(f"Volume {name}: {text!r:.80} is not usable: {_HOW}.")
    source, *rest = text.split(":")
    rights, *size = rest or ["ro"]
    if rights not in ("ro", "rw") or len(size) > 1:
        raise InvalidParams(f"Volume {name}: {text!r:.200} is not usable: {_HOW}. A path has no ':' or ','.")
    if source.startswith("/"):
        source = str(Path(source))
        _check_folder(name, Path(source))
    elif not _ENGINE_NAME.fullmatch(source):
        raise InvalidParams(f"Volume {name}: {source!r:.200} is no absolute path and no name of an engine's volume.")
    return Volume(name, source, rights == "rw", _bytes(name, source, rights, size))


def _bytes(name: str, source: str, rights: str, size: Sequence[str]) -> int:
    if not size:
        return DEFAULT_BYTES
    found = size_of(size[0])
    if not isinstance(found, int) or found < MIB:
        raise InvalidParams(f"Volume {name}: {size[0]!r:.40} is no size: give one such as 512m or 20g.")
    if rights != "rw" or not source.startswith("/"):
        raise InvalidParams(
            f"Volume {name}: a size is for a folder that code may write to (:rw). An engine's volume has its own size."
        )
    return found


def _check_folder(name: str, path: Path) -> None:
    try:
        reason = objection(path, may_be_shared=True) or _objection(path)
    except (OSError, ValueError) as exc:
        reason = f"cannot be read ({getattr(exc, 'strerror', None) or exc})"
    if reason:
        raise InvalidParams(f"Volume {name}: {path} {reason}. Give another folder.")


def _objection(path: Path) -> str:
    """Return why a folder cannot be a volume, as a clause about it; '' if it can."""
    real = os.path.realpath(path)
    if ".." in path.parts:
        return "has '..' in its path"
    if any(path.is_relative_to(tree) for tree in _ENGINE_TREES):
        return "belongs to the engine"
    if not path.exists():
        return "does not exist"
    if not path.is_dir():
        return "is not a folder"
    if real != str(path):
        return f"leads through a symbolic link, to {real}"
    own_uid = os.getuid()
    with open_folder(path) as fd:
        name = foreign_socket(fd, (own_uid,) if own_uid else GUEST_UIDS)
    return f"holds a socket ({name!r}), through which code could leave the sandbox" if name else ""


def _refuse_pair(first: Volume, second: Volume) -> None:
    if first.name == second.name:
        raise InvalidParams(f"volumes has {first.name!r} twice: give each volume a name of its own.")
    one, other = first.folder, second.folder
    if one and other and overlap(one, other) and (first.is_writable or second.is_writable):
        raise InvalidParams(
            f"The volumes {first.name} and {second.name} overlap, and code may write to one of them, so it could "
            "redirect the path of the other. Give folders beside each other."
        )
