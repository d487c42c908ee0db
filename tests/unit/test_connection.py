import contextlib
import json
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_tools.errors import EngineError, ProtocolViolation
from agent_tools.runtime.connection import RunDir
from agent_tools.runtime.engine import Guest
from agent_tools.runtime.owner import Owner

ME = os.getuid(), os.getgid()
NOBODY = 65534
SOMEONE = Guest(inside=(10001, 10001), outside=(10001, 10001) if ME[0] == 0 else ME)


@pytest.fixture(autouse=True)
def top(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short folder that any user may have, as /tmp is."""
    folder = Path(tempfile.mkdtemp(prefix="at-", dir="/tmp"))
    folder.chmod(0o1777)
    monkeypatch.setenv("AGENT_TOOLS_RUN_DIR", str(folder))
    yield folder
    for path, _, _ in os.walk(folder):
        os.chmod(path, 0o700)  # also what was locked
    shutil.rmtree(folder)


@pytest.fixture
def base(top: Path) -> Path:
    return top / f"agent_tools-{os.getuid()}"


@pytest.fixture
def run_dir() -> RunDir:
    return RunDir(Guest(ME, ME))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat(follow_symlinks=False).st_mode)


def bind(*paths: Path) -> None:
    for path in paths:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))


def test_the_directory_names_its_owner_and_lets_others_only_pass(run_dir: RunDir, base: Path) -> None:
    assert run_dir.path.parent == base
    assert run_dir.path.name.startswith(f"{Owner.current().token}-")
    assert (mode(base), mode(run_dir.path)) == (0o700, 0o711)
    assert run_dir.init_socket.parent == run_dir.path


def test_modes_do_not_depend_on_the_umask(base: Path) -> None:
    before = os.umask(0o077)
    try:
        run_dir = RunDir(SOMEONE)
        run_dir.prepare(1)
    finally:
        os.umask(before)
    assert (mode(run_dir.path), mode(run_dir.path / "1")) == (0o711, 0o700)


def test_no_two_directories_are_the_same() -> None:
    assert len({RunDir(SOMEONE).path for _ in range(20)}) == 20


def test_a_kernels_directory_is_handed_to_the_guest() -> None:
    run_dir = RunDir(SOMEONE)
    run_dir.prepare(1)
    folder = run_dir.path / "1"
    assert (mode(folder), mode(folder / "kernel.json")) == (0o700, 0o400)
    assert folder.stat().st_uid == (folder / "kernel.json").stat().st_uid == SOMEONE.outside[0]
    assert run_dir.path.stat().st_uid == os.getuid()


def test_the_connection_file_is_jupyters(run_dir: RunDir) -> None:
    connection = run_dir.prepare(3)
    assert json.loads((run_dir.path / "3" / "kernel.json").read_text()) == {
        "transport": "ipc",
        "ip": "/run/kernel/3/k",
        "key": connection.key.decode(),
        "signature_scheme": "hmac-sha256",
        "shell_port": 1,
        "iopub_port": 2,
        "stdin_port": 3,
        "control_port": 4,
        "hb_port": 5,
    }
    assert (connection.shell, connection.iopub) == (
        f"ipc://{run_dir.path}/3/k-1",
        f"ipc://{run_dir.path}/3/k-2",
    )


def test_without_a_mount_the_guest_sees_the_hosts_path() -> None:
    run_dir = RunDir(SOMEONE, guest_path=None)
    run_dir.prepare(1)
    assert json.loads((run_dir.path / "1" / "kernel.json").read_text())["ip"] == f"{run_dir.path}/1/k"


def test_every_kernel_has_a_fresh_key(run_dir: RunDir) -> None:
    keys = {run_dir.prepare(generation).key for generation in range(1, 6)}
    assert len(keys) == 5
    assert {len(bytes.fromhex(key.decode())) for key in keys} == {32}


def test_the_guests_own_sockets_pass(run_dir: RunDir) -> None:
    run_dir.prepare(1)
    bind(run_dir.path / "1" / "k-1", run_dir.path / "1" / "k-2")
    run_dir.check(1)


def link_to_a_socket(path: Path) -> None:
    bind(path.with_name("other"))
    path.symlink_to("other")


PLANTED: dict[str, Callable[[Path], object]] = {
    "a link to a socket": link_to_a_socket,
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a file": Path.touch,
    "a FIFO": os.mkfifo,
    "a folder": Path.mkdir,
    "nothing": lambda path: None,
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED.keys())
@pytest.mark.parametrize(("good", "bad"), [("k-1", "k-2"), ("k-2", "k-1")])
def test_anything_but_a_socket_is_refused(
    run_dir: RunDir, plant: Callable[[Path], object], good: str, bad: str
) -> None:
    run_dir.prepare(1)
    bind(run_dir.path / "1" / good)
    plant(run_dir.path / "1" / bad)
    with pytest.raises(ProtocolViolation):
        run_dir.check(1)


def test_a_socket_of_someone_else_is_refused() -> None:
    other = (ME[0] + 1, ME[1])
    run_dir = RunDir(Guest(inside=other, outside=other))
    run_dir.prepare(1)
    bind(run_dir.path / "1" / "k-1", run_dir.path / "1" / "k-2")
    with pytest.raises(ProtocolViolation, match="replaced"):
        run_dir.check(1)


def test_a_locked_directory_can_no_longer_be_changed_by_the_guest() -> None:
    run_dir = RunDir(SOMEONE)
    run_dir.prepare(1)
    run_dir.lock(1)
    folder = run_dir.path / "1"
    assert mode(folder) == 0o511
    assert folder.stat().st_uid == os.getuid()


def test_locking_what_is_gone_is_no_error(run_dir: RunDir) -> None:
    run_dir.lock(7)


def test_removing_leaves_nothing_and_may_be_repeated(run_dir: RunDir, base: Path) -> None:
    run_dir.prepare(1)
    bind(run_dir.path / "1" / "k-1")
    run_dir.remove()
    run_dir.remove()
    assert list(base.iterdir()) == []


def test_removing_follows_no_links(run_dir: RunDir, tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    run_dir.prepare(1)
    (run_dir.path / "1" / "link").symlink_to(tmp_path)
    run_dir.remove()
    assert not run_dir.path.exists()
    assert (tmp_path / "kept").exists()


def as_an_ordinary_user(work: Callable[[], bool]) -> bool:
    """Whether `work` says True in a child that is not root."""
    child = os.fork()
    if child == 0:
        done = False
        with contextlib.suppress(BaseException):
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            done = work()
        os._exit(0 if done else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_an_ordinary_user_removes_locked_directories_too() -> None:
    def work() -> bool:
        me = os.getuid(), os.getgid()
        run_dir = RunDir(Guest(me, me))
        run_dir.prepare(1)
        run_dir.lock(1)
        run_dir.remove()
        return not run_dir.path.exists()

    assert as_an_ordinary_user(work)


def test_an_open_base_is_made_private(base: Path) -> None:
    base.mkdir()
    base.chmod(0o777)
    RunDir(SOMEONE)
    assert mode(base) == 0o700


def test_a_path_too_long_for_a_socket_is_told(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TOOLS_RUN_DIR", str(top / ("x" * 80)))
    with pytest.raises(EngineError, match="AGENT_TOOLS_RUN_DIR"):
        RunDir(SOMEONE)


def test_the_longest_path_that_is_taken_fits_a_socket(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0
    for length in range(1, 80):
        monkeypatch.setenv("AGENT_TOOLS_RUN_DIR", str(top / ("x" * length)))
        with contextlib.suppress(EngineError):
            run_dir = RunDir(Guest(ME, ME))
            run_dir.prepare(9999)
            bind(run_dir.path / "9999" / "k-5")
            taken = length
    assert 0 < taken < 79


BASES: dict[str, Callable[[Path], object]] = {
    "a link to a folder": lambda base: base.symlink_to(base.parent),
    "a dangling link": lambda base: base.symlink_to("nowhere"),
    "a file": Path.touch,
}


@pytest.mark.parametrize("plant", BASES.values(), ids=BASES.keys())
def test_a_base_that_is_no_folder_is_refused(base: Path, plant: Callable[[Path], object]) -> None:
    plant(base)
    with pytest.raises(EngineError, match="AGENT_TOOLS_RUN_DIR"):
        RunDir(SOMEONE)


def test_a_base_that_cannot_be_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TOOLS_RUN_DIR", "/proc/none")
    with pytest.raises(EngineError, match="AGENT_TOOLS_RUN_DIR"):
        RunDir(SOMEONE)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder of someone else")
def test_a_base_of_someone_else_is_refused(base: Path) -> None:
    base.mkdir()
    os.chown(base, 10001, 10001)
    with pytest.raises(EngineError, match="is not a folder of yours"):
        RunDir(SOMEONE)
