"""Folders that go with their process: also after it was killed, and never those of others."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from agent_tools.runtime.files.temp_work_dir import make_temp_work_dir, remove_stale_temp_work_dirs


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def stale(base: Path) -> Path:
    """A folder of a process that is gone, with something in it."""
    with subprocess.Popen(["true"]) as gone:
        pass
    live = make_temp_work_dir()
    path = live.rename(live.with_name(live.name.replace(f"-{os.getpid()}-", f"-{gone.pid}-")))
    (path / "by_code").mkdir()
    return path


def test_the_folder_of_a_process_that_is_gone_is_removed(stale: Path) -> None:
    assert remove_stale_temp_work_dirs() == [stale]
    assert not stale.exists()


def test_that_of_a_live_process_stays(base: Path) -> None:
    live = make_temp_work_dir()
    assert remove_stale_temp_work_dirs() == []
    assert live.is_dir()
    assert live.stat().st_mode & 0o777 == 0o700


def test_that_of_another_host_stays(stale: Path) -> None:
    *head, mark, random = stale.name.split("-", 5)[:6]
    other = stale.rename(stale.with_name("-".join([*head, "00000000", random])))
    assert mark != "00000000"
    assert remove_stale_temp_work_dirs() == []
    assert other.is_dir()


def test_a_link_under_such_a_name_stays_and_is_not_followed(stale: Path, base: Path) -> None:
    kept = stale.rename(base / "kept")
    stale.symlink_to(kept)
    assert remove_stale_temp_work_dirs() == []
    assert (kept / "by_code").is_dir()


@pytest.mark.parametrize("name", ["agent-tools-", "agent-tools-1-2", "agent-tools-x-1-00000000-y", "notes"])
def test_what_has_another_name_stays(base: Path, name: str) -> None:
    (base / name).mkdir()
    assert remove_stale_temp_work_dirs() == []
