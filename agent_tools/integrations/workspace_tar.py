"""The tar of a workspace without some of its paths. A sandbox made it, so nothing in it is believed or unpacked."""

from __future__ import annotations

import tarfile
from collections.abc import Collection
from pathlib import PurePosixPath
from typing import IO

from agent_tools.errors import FileRejected

MAX_NAME = 4096  # bytes of a path, as Linux has it


def without(archive: IO[bytes], skipped: Collection[PurePosixPath], kept: IO[bytes]) -> None:
    """Copy a tar, but for some paths and what lies below them.

    Raises:
        FileRejected: it is no tar, or has a path that is longer than a path can be.
    """
    try:
        with tarfile.open(fileobj=archive, mode="r|") as old, tarfile.open(fileobj=kept, mode="w|") as new:
            for member in old:
                old.members = []  # it would keep them all  # type: ignore[attr-defined]
                if len(member.name) > MAX_NAME or len(member.linkname) > MAX_NAME:
                    raise FileRejected("The workspace's archive has a path that no file can have.")
                path = PurePosixPath(member.name)
                if skipped.isdisjoint({path, *path.parents}):
                    new.addfile(_plain(member), old.extractfile(member) if member.isreg() else None)
                    new.members = []  # type: ignore[attr-defined]
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as exc:
        raise FileRejected(f"The workspace's archive is malformed: {exc!s:.200}") from exc


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a member without the further headers that it came with, which are not ours to pass on."""
    member.pax_headers = {}
    return member
