"""Saved variables: what is left of a save that does not come to its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from agent_tools.containers.config import ContainersConfig
from agent_tools.containers.kept_variables import PARKED, KeptVariables, Kind
from agent_tools.tools.tool_sandbox import ToolSandbox


class FakeSandbox:
    """Stands for a sandbox that does something before its variables are saved."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def save_to(self, file: BinaryIO, *, files: bool) -> None:
        file.write(b"half")
        file.flush()
        self._action()


@pytest.fixture
def kept(work_dir: Path) -> KeptVariables:
    return KeptVariables(ContainersConfig(data_dir=work_dir))


def save(kept: KeptVariables, kind: Kind, action: Callable[[], None]) -> bool:
    return kept.keep("a", cast("ToolSandbox", FakeSandbox(action)), kind)


@pytest.mark.parametrize("kind", ["parked", "saved"])
def test_an_unfinished_save_of_a_killed_process_is_counted_and_removed(
    kept: KeptVariables, work_dir: Path, kind: Kind
) -> None:
    def end() -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        save(kept, kind, end)
    assert kept.size("a") == 4
    kept.remove("a")
    assert list((work_dir / "variables").iterdir()) == []


def test_a_save_that_ends_after_the_removal_leaves_nothing(kept: KeptVariables, work_dir: Path) -> None:
    assert not save(kept, "saved", lambda: kept.remove("a"))
    assert list((work_dir / "variables").iterdir()) == []


def test_variables_that_could_not_be_loaded_are_not_told_as_the_latest(kept: KeptVariables, work_dir: Path) -> None:
    class Broken(FakeSandbox):
        def run_code(self, _: str) -> None:
            raise OSError

    assert save(kept, "parked", lambda: None)
    assert kept.bring_back("a", cast("ToolSandbox", Broken(lambda: None))) == PARKED
    assert [each.suffix for each in (work_dir / "variables").iterdir()] == [".saved"]
