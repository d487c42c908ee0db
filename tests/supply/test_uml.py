"""Machines in User-mode Linux: their door of files, played by a shell in place of a kernel, and what they reject."""

from __future__ import annotations

import fcntl
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from supply.uml import Disks, Machine, MachineError, booted, pack_checkout

RUNNER = """cd "$1"; echo up >console
while sleep 0.02; do
    [ -e job ] || continue
    mv job running; bash running >log 2>&1; echo $? >code.new; mv code.new code
done"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    (tmp_path / "console").touch()
    process = subprocess.Popen(["bash", "-c", RUNNER, "runner", str(tmp_path)])
    yield Machine(process, tmp_path, tmp_path / "console")
    process.kill()
    process.wait()


def test_a_script_returns_its_exit_code_and_what_it_printed(machine: Machine) -> None:
    assert machine.run("echo one; echo two >&2; exit 3", 20) == (3, "one\ntwo\n")
    assert machine.run("true", 20) == (0, "")


def test_a_script_that_does_not_end_in_time_is_an_error_that_names_its_output(machine: Machine) -> None:
    with pytest.raises(MachineError, match=r"No end after 0 s.*/log"):
        machine.run("sleep 5", 0.4)


def test_a_machine_that_ended_is_an_error_that_names_its_console(machine: Machine) -> None:
    with pytest.raises(MachineError, match=r"The machine has ended.*/console"):
        machine.run("kill $PPID; sleep 5", 20)


def test_one_folder_serves_one_machine_at_a_time(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (
            pytest.raises(MachineError, match="Another machine uses"),
            booted(Disks(tmp_path, "trixie"), tmp_path, "1G", tmp_path),
        ):
            pass


def test_the_checkout_is_packed_without_what_git_ignores(tmp_path: Path) -> None:
    pack_checkout(tmp_path / "checkout.tar")
    with tarfile.open(tmp_path / "checkout.tar") as archive:
        names = archive.getnames()
    assert "./pyproject.toml" in names
    assert not [name for name in names if name.startswith(("./.venv", "./.git/"))]
