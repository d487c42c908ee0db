"""The branches of one kernel: how many there may be, and how they end with it."""

import pytest

from agent_tools.errors import InvalidParams
from agent_tools.results.execution import Cause
from agent_tools.runtime.sandbox.branches import BranchLimit, KernelBranches


class Told:
    """A branch that notes what it is told."""

    def __init__(self, branches: KernelBranches) -> None:
        self.branches = branches
        self.said: list[str] = []

    def kill(self, reason: str, cause: Cause) -> None:
        self.said.append(f"kill: {reason} ({cause})")

    def close(self) -> None:
        self.said.append("close")
        self.branches.remove(self)


def test_there_is_room_for_so_many() -> None:
    room = BranchLimit(2)
    room.take_slot()
    room.take_slot()
    with pytest.raises(InvalidParams, match=r"2 forks already \(max_branches\): close one of them first"):
        room.take_slot()
    room.leave()
    room.take_slot()


def test_all_are_told_and_those_that_are_gone_are_not() -> None:
    branches = KernelBranches(BranchLimit(9))
    one, two = Told(branches), Told(branches)
    branches.add(one)
    branches.add(two)
    branches.remove(one)
    branches.remove(one)
    branches.kill("it went too far", "work_dir_quota")
    branches.close()
    branches.close()
    assert one.said == []
    assert two.said == ["kill: it went too far (work_dir_quota)", "close"]


def test_one_that_comes_late_is_closed() -> None:
    branches = KernelBranches(BranchLimit(9))
    branches.close()
    late = Told(branches)
    branches.add(late)
    assert late.said == ["close"]
