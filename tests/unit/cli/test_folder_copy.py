"""The patch of what has changed in a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_tools.cli import folder_copy


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
