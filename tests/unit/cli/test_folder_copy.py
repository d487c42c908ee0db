"""The patch of what has changed in a copy."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from agent_tools.cli import cli, folder_copy


def test_a_comparison_that_takes_too_long_is_told(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    git = work_dir / "git"
    git.write_text("#!/bin/sh\nexec sleep 1000\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", str(work_dir), prepend=":")
    monkeypatch.setattr(folder_copy, "DIFF_SECONDS", 0.1)
    folder_copy._write_diff(work_dir, work_dir / "changes.patch", work_dir)
    assert "not complete" in " ".join(capsys.readouterr().err.split())


def test_changes_are_written_also_if_the_work_fails(work_dir: Path, tmp_path: Path) -> None:
    (work_dir / "a.txt").write_text("a\n")

    def work() -> None:
        with folder_copy.copied(work_dir, tmp_path / "diff") as copy:
            (copy / "a.txt").write_text("b\n")
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        work()
    assert "+b" in (tmp_path / "diff").read_text()


def test_a_project_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["codex", "--folder", str(tmp_path / "missing")])
    assert (done.exit_code, "does not exist" in done.output) == (2, True)
    assert not (tmp_path / "missing").exists()
