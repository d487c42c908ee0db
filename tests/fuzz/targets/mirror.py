"""The file server of a sandbox on another machine, which may say anything of its files.

The input is a program (see unfold.py): an object is an answer, a text is content. `R` as first byte: the
bytes themselves.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from agent_tools.errors import FileRejected
from agent_tools.guest.wire.files import CONTENT, HEAD
from agent_tools.guest.wire.framing import pack
from agent_tools.limits import MIB, Limits
from agent_tools.machine import folder
from agent_tools.runtime.files.file_conversation import Conversation
from agent_tools.runtime.files.guest_files import GuestFiles
from agent_tools.runtime.files.mirror import Mirror
from tests.fuzz import unfold
from tests.fuzz.oracle import Bound, Parts, Target

WORDS = (
    "entries",
    "total",
    "facts",
    "errno",
    "a",
    "a/b",
    "b",
    "../a",
    "/a",
    ".",
    "a/",
    "a" * 255,
    "b/" * 20 + "c",
)
LIMITS = Limits(max_work_dir_bytes=MIB, max_file_bytes=MIB, max_work_dir_entries=2_000, min_disk_free=0)
ME = (os.getuid(), os.getgid())


class Answers:
    """A socket on which the answers lie ready, whatever is asked."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def recv(self, most: int) -> bytes:
        taken, self._data = self._data[:most], self._data[most:]
        return bytes(taken)

    def send(self, data: bytes) -> int:
        return len(data)

    def settimeout(self, seconds: float) -> None: ...

    def close(self) -> None: ...


class Ready(Conversation):
    """A connection on which the next answer may lie ready before its request."""

    is_idle = True  # type: ignore[assignment]


def unfold_answers(data: bytes) -> Parts:
    """What the server says."""
    if data[:1] == b"R":
        return [unfold.text(data[1:])]
    return [_packed(each) for each in unfold.values(data[1:], WORDS)]


def _packed(answer: Any) -> bytes:
    if isinstance(answer, str):
        return pack(CONTENT, answer.encode("utf-8", "replace"))
    return pack(HEAD, unfold.as_json(answer))


def exchange(parts: Parts) -> None:
    """Fetch files into an empty folder, and send one out; what is there afterwards is within the limits."""
    outer = tempfile.mkdtemp(prefix="agent-tools-fuzz-")
    here = Path(outer, "here")
    here.mkdir()
    try:
        answers: Any = Answers(b"".join(parts))
        mirror = Mirror(here, ME, LIMITS, GuestFiles(LIMITS, partial(Ready, answers)))
        mirror.pull()
        (here / "mine").write_bytes(b"1")
        mirror.push()
    except FileRejected as exc:
        str(exc).encode()
    finally:
        try:
            _check(here)
        finally:
            _remove(outer)


def _check(here: Path) -> None:
    assert os.listdir(here.parent) == ["here"], "a file outside"
    used = folder.usage(here, folder.FolderUsage(2 * MIB, 5_000, folder.MAX_LEVELS))
    assert used.entries <= 5_000, "more entries than there may be"
    assert used.levels <= folder.MAX_DEPTH + 1, "folders deeper than any that are looked at"


def _remove(outer: str) -> None:
    """Remove it, at whatever depth; a process for that is started only where there is something."""
    try:
        os.rmdir(Path(outer, "here"))
        os.rmdir(outer)
    except OSError:
        subprocess.run(["rm", "-rf", outer], check=True)


TARGET = Target(
    exchange,
    unfold_answers,
    allowed=(FileRejected,),
    bound=Bound(seconds=1.0),
    vocabulary=WORDS,
    words=(
        b'{"entries": [["a", 1, 1, 1]], "total": 1}',
        b'{"errno": 13}',
        pack(CONTENT, b"x") + pack(CONTENT, b""),
        b"{}",
        b"a/",
        unfold.repeat(2, 12),
    ),
)
