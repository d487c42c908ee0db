"""The folders of sandboxes made ahead: where they lie, and that none outlives its process."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from agent_tools.errors import InvalidParams
from agent_tools.machine.owner import Owner
from agent_tools.machine.private_folder import private_base
from agent_tools.runtime.files.empty_work_dir import EmptyWorkDir, remove_stale_empty_work_dirs
from tests.doubles import ProcessEngine

guest_of = ProcessEngine().guest


def dead() -> str:
    """The token of a process that is gone."""
    process = subprocess.Popen(["true"])
    process.wait()
    return f"{process.pid}-1"


def left_by(token: str, folder: Path) -> tuple[Path, Path]:
    """The folder and the record that a killed process left."""
    name = f"{token}-0123456789abcdef"
    path, record = folder / f".agent-tools-blank-{name}", private_base() / f"blank-{name}"
    path.mkdir()
    record.write_bytes(os.fsencode(path))
    return path, record


def test_a_blank_is_empty_and_goes_with_its_record(work_dir: Path) -> None:
    blank = EmptyWorkDir(work_dir, guest_of)
    assert blank.path.parent == work_dir
    assert list(blank.path.iterdir()) == []
    assert Owner.current().token in blank.path.name
    blank.remove()
    blank.remove()
    assert list(work_dir.iterdir()) == []
    assert [name for name in os.listdir(private_base()) if name.startswith("blank-")] == []


def test_blanks_of_dead_processes_are_swept_and_no_others(work_dir: Path) -> None:
    path, record = left_by(dead(), work_dir)
    living = EmptyWorkDir(work_dir, guest_of)
    assert remove_stale_empty_work_dirs() == [path]
    assert not path.exists()
    assert not record.exists()
    assert living.path.is_dir()
    living.remove()


def test_a_folder_that_is_not_empty_is_never_removed(work_dir: Path) -> None:
    path, record = left_by(dead(), work_dir)
    (path / "precious").write_text("1")
    remove_stale_empty_work_dirs()
    assert (path / "precious").read_text() == "1"
    assert not record.exists()


def test_a_record_can_only_name_a_folder_of_its_own_name(work_dir: Path) -> None:
    path, record = left_by(dead(), work_dir)
    (work_dir / "another").mkdir()
    record.write_bytes(os.fsencode(work_dir / "another"))
    assert remove_stale_empty_work_dirs() == []
    assert (work_dir / "another").is_dir()
    path.rmdir()


def test_where_no_work_dir_may_lie_no_blank_does(work_dir: Path) -> None:
    with pytest.raises(InvalidParams):
        EmptyWorkDir(Path("/etc"), guest_of)
    assert [name for name in os.listdir(private_base()) if name.startswith("blank-")] == []
