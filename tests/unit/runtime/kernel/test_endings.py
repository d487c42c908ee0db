"""The end of a kernel in words."""

from __future__ import annotations

import pytest

from agent_tools.guest.wire.words import Exit
from agent_tools.limits import GIB, MIB
from agent_tools.runtime.kernel.end_words import CLEAR, USE_LESS, describe, describe_exit
from agent_tools.runtime.kernel.escalation import Ended, Gone, Silent, Why

EXITS: list[tuple[Exit, str]] = [
    (Exit(1), "its process exited with code 0"),
    (Exit(1, code=7), "its process exited with code 7"),
    (Exit(1, code=2**31 - 1), "its process exited with code 2147483647"),
    (Exit(1, code=1, oom=True), "its process exited with code 1"),
    (Exit(1, signal=9), "it was killed by signal 9 (SIGKILL)"),
    (Exit(1, signal=11), "it was killed by signal 11 (SIGSEGV)"),
    (Exit(1, signal=2), "it was killed by signal 2 (SIGINT)"),
    (Exit(1, signal=777), "it was killed by signal 777"),
    (Exit(1, signal=9, oom=True), f"it was killed at its memory limit of 2 GiB ({USE_LESS})"),
    (
        Exit(1, signal=9, oom=True, folder="/tmp", files=9, mib=256),
        f"it was killed at its memory limit of 2 GiB ({USE_LESS})",
    ),
    (
        Exit(1, signal=9, oom=True, folder="/dev/shm", files=65_535, mib=300),
        f"it was killed at its memory limit of 2 GiB, of which 65,535 files in /dev/shm take 300 MiB ({CLEAR})",
    ),
    (
        Exit(1, signal=9, oom=True, folder="/tmp", files=0, mib=300),  # as under gVisor
        f"it was killed at its memory limit of 2 GiB, of which files in /tmp take 300 MiB ({CLEAR})",
    ),
    (Exit(1, signal=6, oom=True), f"it was killed at its memory limit of 2 GiB ({USE_LESS})"),
]


@pytest.mark.parametrize(("exit_", "words"), EXITS, ids=[words for _, words in EXITS])
def test_how_a_process_ended(exit_: Exit, words: str) -> None:
    assert describe_exit(exit_, 2 * GIB) == words
    assert describe(Ended(exit_), 2 * GIB) == words


@pytest.mark.parametrize(
    ("memory", "words"), [(512 * MIB, "0.5 GiB"), (3 * GIB, "3 GiB"), (GIB + GIB // 4, "1.25 GiB")]
)
def test_the_memory_limit_is_named_in_gib(memory: int, words: str) -> None:
    assert f"limit of {words} (" in describe_exit(Exit(1, signal=9, oom=True), memory)


HOWS = (Exit(1, code=7), Exit(1, signal=9), Exit(1, signal=9, oom=True), Gone(), Silent(), None)
REASONS: list[tuple[Why, str, str]] = [
    (Why.OVERDUE, "", "its code did not stop at the time limit"),
    (Why.DEAF, "", "its code did not stop when it was interrupted"),
    (Why.CLOSED, "", "it closed its channel"),
    (Why.OVERDUE, "a detail", "its code did not stop at the time limit"),
    (Why.BROKE, "a message of 3 parts", "it sent a message of 3 parts"),
    (Why.CONDEMNED, "it filled work_dir", "it filled work_dir"),
]


@pytest.mark.parametrize(
    ("why", "detail", "words"), REASONS, ids=[f"{why.name} {detail}" for why, detail, _ in REASONS]
)
def test_a_reason_of_ours_goes_before_how_it_ended(why: Why, detail: str, words: str) -> None:
    assert {describe(Ended(how, why, detail), GIB) for how in HOWS} == {words}


def test_every_reason_is_tried() -> None:
    assert {why for why, _, _ in REASONS} == set(Why)


ENDS: list[tuple[Ended, str]] = [
    (Ended(Gone()), "the sandbox ended"),
    (Ended(Silent()), "the sandbox stopped answering"),
    (Ended(None), "it ended"),
    (Ended(None, Why.CONDEMNED), "it ended"),
    (Ended(Exit(1, signal=9), Why.CONDEMNED), "it was killed by signal 9 (SIGKILL)"),
    (Ended(Gone(), Why.BROKE), "the sandbox ended"),
]


@pytest.mark.parametrize(("ended", "words"), ENDS, ids=repr)
def test_an_end_without_a_reason_is_told_by_how_it_came(ended: Ended, words: str) -> None:
    assert describe(ended, GIB) == words


def test_every_description_is_a_clause() -> None:
    found = [describe(Ended(how, why, "x"), GIB) for how in HOWS for why in (*Why, None)]
    assert all(text and text == text.strip() and not text.endswith(".") for text in found)
