"""The file service of a sandbox, which may say anything of its files and give anything as their content.

The input is a program (see unfold.py): an object is an answer, a text is content. `R` as first byte: the bytes
themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from agent_tools.errors import SandboxGone
from agent_tools.guest.wire.files import CONTENT, HEAD, MAX_PIECE, pack_head
from agent_tools.guest.wire.framing import HEADER, pack
from agent_tools.limits import MIB, Limits
from agent_tools.runtime.files.file_conversation import Conversation
from agent_tools.runtime.files.guest_files import GuestFiles
from tests.fuzz import unfold
from tests.fuzz.oracle import Bound, Parts, Target
from tests.fuzz.targets.mirror import Answers

WORDS = ("entries", "total", "entry", "errno", "a", "../a", "file", "folder", "link", "other", "a" * 255, "\ud800")
LIMITS = Limits(max_transfer_bytes=MIB, max_listed_files=1_000, max_variables=1_000)
FRAMES = (  # words of any such service
    *(pack_head({}), pack_head({"errno": 5}), pack(CONTENT, b""), HEADER.pack(CONTENT, MAX_PIECE + 1)),
    unfold.repeat(2, 12),
)


def unfold_answers(data: bytes) -> Parts:
    """What the service says."""
    if data[:1] == b"R":
        return [unfold.text(data[1:])]
    return [_packed(each) for each in unfold.values(data[1:], WORDS)]


def _packed(answer: Any) -> bytes:
    if isinstance(answer, str):
        return pack(CONTENT, answer.encode("utf-8", "replace"))
    return pack(HEAD, unfold.as_json(answer))


def ask(parts: Parts) -> None:
    """Read, list and look: what comes is within the limits, or an error that says so."""
    ask_each((_read, _scan, _stat), parts, LIMITS)


def ask_each(questions: Iterable[Callable[[GuestFiles], None]], parts: Parts, limits: Limits) -> None:
    """Put each question to a service that gives these answers; an error that may come is short."""
    for question in questions:
        answers: Any = Answers(b"".join(parts))
        told = ""
        try:
            question(GuestFiles(limits, partial(Conversation, answers)))
        except (OSError, SandboxGone) as exc:
            told = str(exc)
        assert len(told) < 1_000, "an error without end"


def _read(files: GuestFiles) -> None:
    assert len(files.read("a")) <= MIB


def _scan(files: GuestFiles) -> None:
    found = files.scan("a")
    assert len(found) <= 1_000
    assert all(isinstance(info.name, str) and info.size >= 0 for info in found)


def _stat(files: GuestFiles) -> None:
    assert files.stat("b/a").path.startswith("b/")


TARGET = Target(
    ask,
    unfold_answers,
    bound=Bound(seconds=1.0),
    vocabulary=WORDS,
    words=(
        b"{}",
        b'{"errno": 2}',
        b'{"entry": ["a", "file", 1, 1, 420]}',
        b'{"entries": [["a", "file", 1, 1, 420]], "total": 1}',
        *FRAMES,
    ),
)
