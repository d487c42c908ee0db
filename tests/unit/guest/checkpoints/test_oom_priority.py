"""Decoys: processes that the memory limit ends before the kernel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_tools.guest.checkpoints.oom_priority import DECOY, DECOYS, Decoys
from tests.waiting import until


@pytest.fixture
def decoys() -> Iterator[Decoys]:
    made = Decoys()
    made.start()
    yield made
    for pid in made.pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_decoys_rank_before_a_kernel_and_hold_no_descriptor_of_ours(decoys: Decoys) -> None:
    assert len(decoys.pids) == DECOYS
    for pid in decoys.pids:
        process = Path(f"/proc/{pid}")
        until(lambda process=process: (process / "comm").read_text() == "sleep\n")
        assert int((process / "oom_score_adj").read_text()) == DECOY
        assert {os.readlink(process / "fd" / number) for number in "012"} == {os.devnull}
        assert os.getsid(pid) == pid


def test_a_decoy_that_has_ended_is_replaced_at_the_next_start(decoys: Decoys) -> None:
    before = set(decoys.pids)
    decoys.start()
    assert not decoys.forget(os.getpid())
    assert decoys.pids == before
    first = min(before)
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    assert decoys.forget(first)
    decoys.start()
    assert len(decoys.pids) == DECOYS
    assert decoys.pids > before - {first}


def test_decoys_start_again_while_the_last_ones_end(decoys: Decoys) -> None:
    before = set(decoys.pids)
    decoys.stop()
    decoys.stop()  # they are about to end already
    decoys.start()
    assert [os.waitpid(pid, 0)[1] for pid in before] == [signal.SIGKILL] * DECOYS
    assert len(decoys.pids - before) == DECOYS


WITHOUT_ROOM = """
import os, resource
from agent_tools.guest.checkpoints.oom_priority import Decoys

resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
if os.getuid() == 0:  # root has no such limit
    os.setuid(65534)
without = Decoys()
without.start()
print(without.pids)
"""


def test_no_decoy_starts_where_the_limit_of_processes_is_reached() -> None:
    ended = subprocess.run([sys.executable, "-c", WITHOUT_ROOM], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("set()\n", "")
