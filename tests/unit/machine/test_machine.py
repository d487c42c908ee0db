"""This machine and its processes, by what Linux tells and by what other systems do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent_tools.machine import machine
from agent_tools.machine.machine import machine_id, start_time
from agent_tools.machine.owner import UNKNOWN, Owner, is_orphan

ROOT = Path(__file__).resolve().parents[4]
ELSEWHERE = """
import os, sys, time
from agent_tools.machine.machine import start_time
from agent_tools.machine.owner import Owner, is_orphan, owner_is_gone

began = start_time(os.getpid())
assert began is not None and abs(time.time() - began) < 600, began
assert start_time(int(sys.argv[1])) is None
assert Owner.current().start == began and not owner_is_gone(Owner.current().token)
labels = {"agent_tools.host": Owner.current().host, "agent_tools.owner": sys.argv[1] + "-1"}
print(Owner.current().host, is_orphan(labels))
"""


@pytest.fixture
def ended() -> int:
    """The pid of a process that is gone."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_linux_tells_the_boot_and_the_start_of_each_process(ended: int) -> None:
    assert machine_id() == machine_id() != ""
    assert start_time(os.getpid()) == start_time(os.getpid())
    assert (start_time(ended), machine_id.cache_info().currsize) == (None, 1)


def test_other_systems_tell_the_start_by_ps_and_what_they_do_not_tell_makes_no_orphan(
    ended: int, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(ELSEWHERE)
    command = [sys.executable, "-m", "tests.without_linux", program, str(ended)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == (f"{UNKNOWN} False\n", "")


def test_time_is_read_as_ps_prints_it() -> None:
    now = int(time.time())
    assert machine._time_of(time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(now))) == now
    assert [machine._time_of(words) for words in ("", "yesterday", "Sun Nov 99 00:00:00 2026")] == [None] * 3


def test_a_program_that_is_not_there_or_fails_tells_nothing() -> None:
    assert machine._asked("no-such-program-anywhere") == ""
    assert machine._asked("false") == ""


def test_a_machine_that_is_known_has_orphans(ended: int) -> None:
    assert is_orphan(Owner(Owner.current().host, ended, 1).labels)
    assert not is_orphan(Owner(UNKNOWN, ended, 1).labels)
