"""The process that the memory limit may end in the kernel's stead."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_tools.guest.checkpoints import scapegoat
from agent_tools.guest.checkpoints.scapegoat import SCORE, Scapegoat


@pytest.fixture
def wanted() -> Iterator[Scapegoat]:
    made = Scapegoat()
    made.want(True)
    yield made
    if made.pid:
        os.kill(made.pid, signal.SIGKILL)
        os.waitpid(made.pid, 0)


def test_it_goes_before_a_kernel_and_holds_nothing_of_ours(wanted: Scapegoat) -> None:
    process = Path(f"/proc/{wanted.pid}")
    assert int((process / "oom_score_adj").read_text()) == SCORE
    assert {os.readlink(process / "fd" / number) for number in "012"} == {os.devnull}
    assert os.getsid(wanted.pid) == wanted.pid


def test_there_is_one_until_it_has_ended(wanted: Scapegoat) -> None:
    first = wanted.pid
    wanted.want(True)
    wanted.forget(first + 1)
    assert wanted.pid == first
    wanted.want(False)
    wanted.want(False)  # it is about to end already
    wanted.want(True)
    assert os.waitpid(first, 0)[1] == signal.SIGKILL
    wanted.forget(first)
    assert wanted.pid not in (0, first)
    os.kill(second := wanted.pid, signal.SIGKILL)
    os.waitpid(second, 0)
    assert wanted.forget(second)
    wanted.want(True)
    assert wanted.pid not in (0, second)


def test_without_room_for_it_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scapegoat, "PROGRAM", ("/nowhere/sleep", "infinity"))
    without = Scapegoat()
    without.want(True)
    assert without.pid == 0
