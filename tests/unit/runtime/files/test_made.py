"""The folders that this process made: known by name and inode, and not for ever."""

from __future__ import annotations

from pathlib import Path

from agent_tools.machine.path_walk import identity
from agent_tools.runtime.files.new_work_dirs import MOST, forget_made, is_made_here, note_made
from agent_tools.runtime.files.work_dir import prepare_work_dir
from tests.doubles import ProcessEngine


def test_only_what_was_made_here_is_known_until_a_sandbox_has_it(work_dir: Path) -> None:
    guest = ProcessEngine().guest()
    made, found = prepare_work_dir(work_dir / "made", guest), work_dir / "found"
    found.mkdir()
    prepare_work_dir(found, guest)
    assert is_made_here(made, identity(made))
    assert not is_made_here(found, identity(found))
    assert not is_made_here(made, identity(found))
    forget_made(made)
    assert not is_made_here(made, identity(made))


def test_only_so_many_are_remembered() -> None:
    for number in range(MOST + 1):
        note_made(Path("/folder"), (1, number))
    assert not is_made_here(Path("/folder"), (1, 0))
    assert is_made_here(Path("/folder"), (1, MOST))
    forget_made(Path("/folder"))
    assert not is_made_here(Path("/folder"), (1, MOST))
