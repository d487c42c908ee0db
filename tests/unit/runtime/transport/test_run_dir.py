import contextlib
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_tools.errors import EngineError
from agent_tools.machine.owner import Owner
from agent_tools.machine.private_folder import private_base
from agent_tools.runtime.transport.lifeline import Listener
from agent_tools.runtime.transport.run_dir import RunDir


@pytest.fixture(autouse=True)
def top(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short folder that any user may have, as /tmp is."""
    folder = Path(tempfile.mkdtemp(prefix="at-", dir="/tmp"))
    folder.chmod(0o1777)
    monkeypatch.setenv("AGENT_TOOLS_RUN_DIR", str(folder))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def base(top: Path) -> Path:
    return top / f"agent_tools-{os.getuid()}"


@pytest.fixture
def run_dir() -> RunDir:
    return RunDir()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat(follow_symlinks=False).st_mode)


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


# -- RunDir -----------------------------------------------------------------------------------------------------------


def test_the_directory_names_its_owner(run_dir: RunDir, base: Path) -> None:
    assert run_dir.path.parent == base
    assert run_dir.path.name.startswith(f"{Owner.current().token}-")


def test_no_two_directories_are_the_same() -> None:
    assert len({RunDir().path for _ in range(20)}) == 20


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_only_the_mounted_folder_can_be_read_by_others_whatever_the_umask(base: Path, mask: int) -> None:
    with umask(mask):
        run_dir = RunDir()
    assert (mode(base), mode(run_dir.path), mode(run_dir.mounted)) == (0o700, 0o700, 0o755)
    assert {path.stat().st_uid for path in (base, run_dir.path, run_dir.mounted)} == {os.getuid()}


def test_the_mounted_folder_holds_the_lifelines_socket_and_nothing_else(run_dir: RunDir) -> None:
    listener = Listener(run_dir.init_socket)
    assert list(run_dir.mounted.iterdir()) == [run_dir.init_socket]
    assert list(run_dir.path.iterdir()) == [run_dir.mounted]
    listener.close()
    assert list(run_dir.mounted.iterdir()) == []


def test_removing_leaves_nothing_and_may_be_repeated(run_dir: RunDir, base: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(run_dir.init_socket))
    run_dir.remove()
    run_dir.remove()
    assert list(base.iterdir()) == []


@pytest.mark.parametrize("place", [".", "guest"])
def test_removing_follows_no_links(run_dir: RunDir, tmp_path: Path, place: str) -> None:
    (tmp_path / "kept").touch()
    (run_dir.path / place / "link").symlink_to(tmp_path)
    run_dir.remove()
    assert not run_dir.path.exists()
    assert (tmp_path / "kept").exists()


def test_removing_does_not_follow_a_directory_that_became_a_link(run_dir: RunDir, tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    shutil.rmtree(run_dir.path)
    run_dir.path.symlink_to(tmp_path)
    run_dir.remove()
    assert (tmp_path / "kept").exists()


def test_a_path_too_long_for_a_socket_is_told(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TOOLS_RUN_DIR", str(top / ("x" * 80)))
    with pytest.raises(EngineError, match="set AGENT_TOOLS_RUN_DIR to a shorter folder"):
        RunDir()


@pytest.mark.parametrize("letter", ["x", "中"])
def test_the_longest_path_that_is_taken_fits_every_socket(
    top: Path, monkeypatch: pytest.MonkeyPatch, letter: str
) -> None:
    taken = []
    for length in range(1, 80):
        monkeypatch.setenv("AGENT_TOOLS_RUN_DIR", str(top / (letter * length)))
        with contextlib.suppress(EngineError):
            run_dir = RunDir()
            listener = Listener(run_dir.init_socket)
            taken.append(length)
            listener.close()
    assert 0 < len(taken) == max(taken) < 79


# -- private_base -----------------------------------------------------------------------------------------------------


def test_the_base_is_made_with_its_parents(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TOOLS_RUN_DIR", str(top / "a" / "b"))
    assert private_base() == top / "a" / "b" / f"agent_tools-{os.getuid()}"
    assert mode(private_base()) == 0o700


@pytest.mark.parametrize("before", [0o777, 0o755, 0o710, 0o701])
def test_an_open_base_is_made_private(base: Path, before: int) -> None:
    base.mkdir()
    base.chmod(before)
    private_base()
    assert mode(base) == 0o700


def test_what_others_left_in_the_base_stays(base: Path) -> None:
    first, second = RunDir(), RunDir()
    second.remove()
    assert list(base.iterdir()) == [first.path]


BASES: dict[str, Callable[[Path], object]] = {
    "a link to a folder": lambda base: base.symlink_to(base.parent),
    "a dangling link": lambda base: base.symlink_to("nowhere"),
    "a link to itself": lambda base: base.symlink_to(base.name),
    "a file": Path.touch,
    "a FIFO": os.mkfifo,
}


@pytest.mark.parametrize("plant", BASES.values(), ids=BASES.keys())
def test_a_base_that_is_no_folder_is_refused(base: Path, plant: Callable[[Path], object]) -> None:
    plant(base)
    with pytest.raises(EngineError, match="AGENT_TOOLS_RUN_DIR"):
        RunDir()


def test_a_link_planted_as_the_base_is_not_made_private(base: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    base.symlink_to(tmp_path)
    with pytest.raises(EngineError, match="is not a folder of yours"):
        private_base()
    assert mode(tmp_path) == 0o755


@pytest.mark.parametrize("place", ["/proc/none", "/dev/null", "/dev/null/below"])
def test_a_base_that_cannot_be_made_is_told(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setenv("AGENT_TOOLS_RUN_DIR", place)
    with pytest.raises(EngineError, match="AGENT_TOOLS_RUN_DIR"):
        RunDir()


@pytest.mark.needs_root(reason="only root can make a folder of someone else")
def test_a_base_of_someone_else_is_refused(base: Path) -> None:
    base.mkdir()
    os.chown(base, 10001, 10001)
    with pytest.raises(EngineError, match="is not a folder of yours"):
        RunDir()
