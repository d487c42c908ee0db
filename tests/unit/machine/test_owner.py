import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_tools.machine.machine import start_time
from agent_tools.machine.owner import Owner, is_orphan, orphans, same_host, same_user
from agent_tools.machine.private_folder import remove_stale_run_dirs


@pytest.fixture
def finished() -> Owner:
    """A process of this machine that has ended."""
    code = "import sys; from agent_tools.machine.owner import Owner; print(Owner.current().token)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pid, start = done.stdout.strip().split("-")
    return Owner(Owner.current().host, int(pid), int(start))


def test_the_current_owner_is_this_process() -> None:
    owner = Owner.current()
    assert owner.pid == os.getpid()
    assert owner.start > 0
    assert owner == Owner.current()
    assert owner.token == f"{owner.pid}-{owner.start}"


def test_labels_name_the_host_the_user_and_the_process() -> None:
    owner = Owner.current()
    user = {"agent_tools.user": str(os.getuid())}
    assert owner.labels == {"agent_tools.host": owner.host, "agent_tools.owner": owner.token, **user}
    assert same_host() == {"agent_tools.host": owner.host}
    assert same_user() == {"agent_tools.host": owner.host, **user}


def test_this_process_is_not_gone() -> None:
    assert not is_orphan(Owner.current().labels)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells it")
def test_a_process_that_ended_and_that_nobody_waits_for_is_gone() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.read(reading, 1)
        os._exit(0)
    start = start_time(child)
    assert start
    labels = Owner(Owner.current().host, child, start).labels
    assert not is_orphan(labels)
    os.write(writing, b"!")
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, and stays in the table of processes
    try:
        assert is_orphan(labels)
    finally:
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


def test_a_finished_process_is_gone(finished: Owner) -> None:
    assert is_orphan(finished.labels)


def test_a_process_with_a_reused_pid_is_gone() -> None:
    current = Owner.current()
    assert is_orphan(Owner(current.host, current.pid, current.start - 1).labels)


def test_the_labels_of_another_host_are_kept(finished: Owner) -> None:
    assert not is_orphan(Owner("another-boot/pid:[1]", finished.pid, finished.start).labels)
    assert not is_orphan({"agent_tools.owner": finished.token})


@pytest.mark.parametrize(
    "token",
    [
        *("", "-", "1", "1-", "-1", "a-b", "1-2-3", "1 - 2", "../1-2", "-1--1", "1.0-2", "²-²", "1-²"),
        "9" * 5000 + "-1",
        "1-" + "9" * 5000,
    ],
    ids=lambda token: token[:12] or "empty",
)
def test_a_token_that_cannot_be_verified_is_kept(token: str) -> None:
    assert not is_orphan({**same_host(), "agent_tools.owner": token})


def test_missing_labels_are_kept() -> None:
    assert not is_orphan({})
    assert not is_orphan(same_host())


def test_run_dirs_of_finished_processes_are_removed(
    finished: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_TOOLS_RUN_DIR", str(tmp_path))
    base = tmp_path / f"agent_tools-{os.getuid()}"
    stale, live, other = base / f"{finished.token}-x", base / f"{Owner.current().token}-x", base / "notes"
    for path in (stale, live, other):
        path.mkdir(parents=True)
    assert remove_stale_run_dirs() == [stale]
    assert sorted(base.iterdir()) == sorted([live, other])


def test_a_link_among_run_dirs_is_not_followed(
    finished: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_TOOLS_RUN_DIR", str(tmp_path))
    base, elsewhere = tmp_path / f"agent_tools-{os.getuid()}", tmp_path / "elsewhere"
    base.mkdir()
    elsewhere.mkdir()
    (base / f"{finished.token}-x").symlink_to(elsewhere)
    assert remove_stale_run_dirs() == []
    assert elsewhere.is_dir()


@pytest.fixture
def stale(finished: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory that a sweep would remove."""
    monkeypatch.setenv("AGENT_TOOLS_RUN_DIR", str(tmp_path))
    path = tmp_path / f"agent_tools-{os.getuid()}" / f"{finished.token}-x"
    path.mkdir(parents=True)
    return path


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_base_that_others_may_write_to_is_not_looked_into(stale: Path, mode: int) -> None:
    stale.parent.chmod(mode)
    assert remove_stale_run_dirs() == []
    assert stale.is_dir()


def test_a_base_that_is_a_link_is_not_looked_into(stale: Path, tmp_path: Path) -> None:
    moved = stale.parent.rename(tmp_path / "elsewhere")
    stale.parent.symlink_to(moved)
    assert remove_stale_run_dirs() == []
    assert (moved / stale.name).is_dir()


@pytest.mark.needs_root(reason="only root can make a folder of someone else")
def test_a_base_of_someone_else_is_not_looked_into(stale: Path) -> None:
    os.chown(stale.parent, 10001, 10001)
    assert remove_stale_run_dirs() == []
    assert stale.is_dir()


def test_a_run_dir_goes_with_all_that_is_in_it(stale: Path) -> None:
    (stale / "guest").mkdir()
    (stale / "guest" / "init.sock").touch()
    assert remove_stale_run_dirs() == [stale]
    assert not stale.exists()


def test_no_run_dirs_at_all_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TOOLS_RUN_DIR", str(tmp_path / "none"))
    assert remove_stale_run_dirs() == []


def test_the_orphans_are_told_from_the_others(finished: Owner) -> None:
    current, other = Owner.current(), {"agent_tools.host": "another machine", "agent_tools.owner": "1-1"}
    found = [*((number, current.labels) for number in range(3)), ("a", finished.labels), ("b", other), ("c", {})]
    assert orphans([*found, ("d", finished.labels)]) == ["a", "d"]
