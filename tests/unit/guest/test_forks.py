"""Forks of PID 1: whether signals between processes of the container arrive."""

from __future__ import annotations

import errno

import pytest

from agent_tools.conformance.guest import privileges
from agent_tools.guest.forks import may_signal
from agent_tools.guest.pid1 import supervisor


def refuse(_pid: int, _number: int) -> None:
    raise PermissionError(errno.EACCES, "Permission denied")


def test_a_refused_signal_to_a_child_is_noticed() -> None:
    assert may_signal()
    assert not may_signal(refuse)


def test_pid_1_does_not_start_where_signals_are_refused_and_names_the_remedy() -> None:
    with pytest.raises(SystemExit, match=r"AppArmor(?s:.)*apparmor_parser -R /etc/apparmor.d/crun"):
        supervisor.main(may_signal=lambda: False)


def test_the_probe_calls_refused_signals_open() -> None:
    verdict, found = privileges._signals(refuse)
    assert (verdict, "AppArmor" in found) == ("open", True)
    assert privileges._signals() == ["held", "arrive"]
