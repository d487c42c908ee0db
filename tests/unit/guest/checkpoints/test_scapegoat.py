"""The processes that the memory limit may end in the kernel's stead."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_tools.guest.checkpoints import scapegoat
from agent_tools.guest.checkpoints.scapegoat import HERD, SCORE, Scapegoats


@pytest.fixture
def wanted() -> Iterator[Scapegoats]:
    made = Scapegoats()
    made.want(True)
    yield made
    for pid in made.pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_they_go_before_a_kernel_and_hold_nothing_of_ours(wanted: Scapegoats) -> None:
    assert len(wanted.pids) == HERD
    for pid in wanted.pids:
        process = Path(f"/proc/{pid}")
        assert int((process / "oom_score_adj").read_text()) == SCORE
        assert {os.readlink(process / "fd" / number) for number in "012"} == {os.devnull}
        assert os.getsid(pid) == pid


def test_one_that_has_ended_is_replaced_where_they_are_wanted_again(wanted: Scapegoats) -> None:
    before = set(wanted.pids)
    wanted.want(True)
    assert not wanted.forget(os.getpid())
    assert wanted.pids == before
    first = min(before)
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    assert wanted.forget(first)
    wanted.want(True)
    assert len(wanted.pids) == HERD
    assert wanted.pids > before - {first}


def test_others_may_be_wanted_while_the_last_ones_end(wanted: Scapegoats) -> None:
    before = set(wanted.pids)
    wanted.want(False)
    wanted.want(False)  # they are about to end already
    wanted.want(True)
    assert [os.waitpid(pid, 0)[1] for pid in before] == [signal.SIGKILL] * HERD
    assert len(wanted.pids - before) == HERD


def test_without_room_for_them_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scapegoat, "PROGRAM", ("/nowhere/sleep", "infinity"))
    without = Scapegoats()
    without.want(True)
    assert without.pids == set()
