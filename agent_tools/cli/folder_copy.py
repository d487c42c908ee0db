"""A copy of a folder to work on, and a patch of what has changed in it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from agent_tools.cli.live_output import notes
from agent_tools.cli.output_file import written
from agent_tools.errors import InvalidParams
from agent_tools.machine.removal import remove_tree
from agent_tools.runtime.files.temp_work_dir import make_temp_work_dir

DIFF_SECONDS = 60
_DIFF = ("diff", "--no-index", "--no-prefix", "--binary", "--no-ext-diff", "--no-textconv", "--no-color")


@contextmanager
def copied(folder: Path, diff: Path | None) -> Iterator[Path]:
    """Yield a copy of a folder; write at the end how it differs."""
    if diff and not shutil.which("git"):
        raise click.UsageError("--diff needs git on this machine.")
    top = make_temp_work_dir()
    try:
        _copy(folder, top)
        try:
            yield top / "b"
        finally:  # also of work that failed
            if diff:
                _write_diff(top, diff, folder)
    finally:
        remove_tree(top)


def _copy(folder: Path, top: Path) -> None:
    try:
        shutil.copytree(folder, top / "a", symlinks=True, ignore=shutil.ignore_patterns(".git"))
        shutil.copytree(top / "a", top / "b", symlinks=True)
    except shutil.Error as exc:
        raise InvalidParams(f"{folder} cannot be copied: {exc.args[0][0][2]}. Leave out --read-only.") from exc


def _write_diff(top: Path, path: Path, folder: Path) -> None:
    """Write a patch from the folder `a` to `b`, which code has changed; git runs without any configuration."""
    git, environment = str(shutil.which("git")), {"HOME": str(top), "GIT_CONFIG_NOSYSTEM": "1"}
    is_whole = False
    with written(path, folder) as file, suppress(subprocess.TimeoutExpired):
        ran = subprocess.run([git, *_DIFF, "a", "b"], cwd=top, env=environment, stdout=file, timeout=DIFF_SECONDS)
        is_whole = ran.returncode <= 1
    if not is_whole:
        notes.print(f"agent-tools: git could not compare the copy: {path} is not complete.", style="red", markup=False)
