"""The tar of a workspace, as a sandbox gives it."""

from __future__ import annotations

import io
import tarfile
from pathlib import PurePosixPath

from agent_tools.errors import FileRejected
from agent_tools.integrations.openai_sandbox_agents import without
from tests.fuzz.oracle import Bound, Parts, Target

SKIPPED = frozenset((PurePosixPath("a"), PurePosixPath("b/c")))


def copy(parts: Parts) -> None:
    """Copy it: what comes out is a tar again, without what was to be left out."""
    kept = io.BytesIO()
    without(io.BytesIO(b"".join(parts)), SKIPPED, kept)
    kept.seek(0)
    with tarfile.open(fileobj=kept, mode="r|") as again:
        for member in again:
            path = PurePosixPath(member.name)
            assert SKIPPED.isdisjoint({path, *path.parents}), f"{path} was to be left out"


def _tar(*members: tuple[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w|") as new:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            new.addfile(info, io.BytesIO(content))
    return made.getvalue()


TARGET = Target(
    copy,
    allowed=(FileRejected,),
    bound=Bound(seconds=1.0),
    words=(
        _tar(("a/x", b"1"), ("kept", b"2")),
        _tar(("b/c", b"")),
        b"ustar\x0000",
        b"ustar  \x00",
        b"x" * 100,
        b"L",
        b"K",
        b"g",
    ),
    max_len=16384,
)
