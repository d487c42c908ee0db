"""The script that installs a bundle: it refuses files that were changed, are missing, or were added."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_tools.cli.bundle import _install_script


def installed(folder: Path) -> tuple[bool, str]:
    """Run the script; return whether it found the folder to be as it was made, and what it says."""
    log, python = folder.parent / "log", folder.parent / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {log}\n')
    python.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(python)}
    command = ["sh", str(folder / "install.sh"), str(folder.parent / "venv")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    told = log.read_text().splitlines()
    assert all(line.startswith("-I ") for line in told), "Python takes modules from the folder in which it runs"
    return any("-m venv" in line for line in told), done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle."""
    made = tmp_path / "bundle"
    for name in ("wheels/click-8.2.1.whl", "images/agent-tools-lean.tar.gz"):
        (made / name).parent.mkdir(parents=True)
        (made / name).write_text(name)
    (made / "install.sh").write_text(_install_script(()))
    sums = "find . -type f -printf '%P\\0' | sort -z | xargs -0 sha256sum"
    (made / "SHA256SUMS").write_bytes(subprocess.run(sums, shell=True, cwd=made, check=True, stdout=-1).stdout)
    return made


def test_a_bundle_is_installed_as_it_was_made(folder: Path) -> None:
    assert installed(folder)[0]


@pytest.mark.parametrize(
    ("tamper", "why"),
    [
        (lambda folder: (folder / "wheels/click-8.2.1.whl").write_text("other"), "was changed"),
        (lambda folder: (folder / "images/agent-tools-lean.tar.gz").unlink(), "not complete"),
        (lambda folder: (folder / "wheels/click-9.whl").write_text("newer"), "does not name"),
        (lambda folder: (folder / "images/more\nthan one.tar.gz").write_text("other"), "does not name"),
        (lambda folder: (folder / "wheels/click-9.whl").symlink_to("/tmp/click-9.whl"), "does not name"),
    ],
    ids=["changed", "missing", "added", "added under an odd name", "added as a link"],
)
def test_a_bundle_that_was_changed_is_refused(folder: Path, tamper: Callable[[Path], object], why: str) -> None:
    tamper(folder)
    passed, said = installed(folder)
    assert (passed, why in said) == (False, True), said
