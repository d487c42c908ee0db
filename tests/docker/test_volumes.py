"""Volumes in real containers: what code sees of them, what it cannot do through them, and what they cost."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_tools import Sandbox
from agent_tools.errors import InvalidParams, SandboxStartError
from agent_tools.results.execution import Died
from tests.docker.lasting import begin_anew

pytestmark = pytest.mark.docker
ATTACKS = (
    "touch /volumes/data/x",
    "echo x >> /volumes/data/a.csv",
    "rm -f /volumes/data/a.csv",
    "mv /volumes/data /volumes/other",
    "mkdir /volumes/own",
    "ln -s /etc /volumes/own",
    "ln /volumes/data/a.csv /volumes/shared/a.csv",
    "ln /volumes/data/a.csv /workspace/a.csv",
    "mount -o remount,rw /volumes/data",
    "umount /volumes/data",
    "mknod /volumes/shared/disk b 8 0",
    "mkfifo /volumes/shared/fifo",
    "chmod 4755 /volumes/shared/program",
    "chown 0 /volumes/shared/program",
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    top = tmp_path_factory.mktemp("volumes")
    found = {name: top / name for name in ("data", "shared")}
    for folder in found.values():
        folder.mkdir()
        folder.chmod(0o777)
    (found["data"] / "a.csv").write_text("a,b\n1,2\n")
    with (found["data"] / "sparse").open("wb") as file:
        file.truncate(2**40)
    return found


@pytest.fixture(scope="module")
def make(folders: dict[str, Path]) -> Callable[[], Sandbox]:
    volumes = {"data": str(folders["data"]), "shared": f"{folders['shared']}:rw:4m"}
    return lambda: Sandbox(volumes=volumes)


@pytest.fixture(scope="module")
def used(make: Callable[[], Sandbox]) -> Iterator[Sandbox]:
    with make() as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(used: Sandbox) -> Sandbox:
    begin_anew(used)
    return used


def test_code_reads_data_and_shares_what_it_writes(sandbox: Sandbox, make: Callable[[], Sandbox]) -> None:
    assert sandbox.run_code("len(pd.read_csv('/volumes/data/a.csv'))").value == 1
    assert sandbox.run_code("open('/volumes/shared/note', 'w').write('hello')").ok
    assert sandbox.read_file("/volumes/shared/note") == b"hello"
    with make() as other:
        assert other.read_file("/volumes/shared/note") == b"hello"
    with sandbox.fork() as fork:
        assert fork.run_code("open('/volumes/shared/note').read()").value == "hello"


def test_a_large_volume_is_not_listed_copied_archived_or_counted(sandbox: Sandbox, folders: dict[str, Path]) -> None:
    execution = sandbox.run_code("import os; os.path.getsize('/volumes/data/sparse')")
    assert execution.value == 2**40
    assert sandbox.run_code("open('/volumes/shared/made', 'w').write('x'); open('here', 'w').write('x')").changed
    changed = sandbox.run_code("open('/volumes/shared/made', 'a').write('x'); open('here', 'a').write('x')").changed
    assert [each.name for each in changed.files] == ["here"]
    assert [each.name for each in sandbox.list_files()] == ["here"]
    with tarfile.open(fileobj=io.BytesIO(sandbox.save())) as tar:
        assert {name.removeprefix("./") for name in tar.getnames()} <= {"", ".", "here"}


def test_code_can_do_no_more_to_a_volume_than_it_may(sandbox: Sandbox, folders: dict[str, Path]) -> None:
    assert sandbox.run_command("cp /bin/id /volumes/shared/program").exit_code == 0
    for attack in ATTACKS:
        assert sandbox.run_command(attack).exit_code != 0, attack
    assert (folders["data"] / "a.csv").read_text() == "a,b\n1,2\n"
    assert sorted(os.listdir(folders["data"])) == ["a.csv", "sparse"]


def test_set_user_id_bits_of_the_host_give_no_rights(sandbox: Sandbox, folders: dict[str, Path]) -> None:
    program = folders["data"] / "program"
    program.write_bytes(Path("/bin/id").read_bytes())
    program.chmod(0o6755)
    try:
        before, after = (sandbox.run_command(f"{each} -u") for each in ("id", "/volumes/data/program"))
        assert after.stdout in (before.stdout, b"")  # b"": the library that it needs may be another one
    finally:
        program.unlink()


def test_a_link_planted_in_a_volume_leads_nowhere_on_the_host(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    sandbox.run_command(f"ln -sfn {tmp_path} /volumes/shared/out && ln -sfn / /volumes/shared/root")
    for path in ("/volumes/shared/out/secret", f"/volumes/shared/root{tmp_path}/secret"):
        with pytest.raises(FileNotFoundError):
            sandbox.read_file(path)


def test_code_that_fills_a_volume_is_ended_with_a_sentence_and_may_delete(
    make: Callable[[], Sandbox], sandbox: Sandbox, folders: dict[str, Path]
) -> None:
    fill = "with open('/volumes/shared/big', 'ab', 0) as file:\n    while True: file.write(bytes(4096))"
    sandbox.run_code("x = 1")
    with make() as writer:
        ended = writer.run_code(fill, timeout=60).outputs[-1]
        assert isinstance(ended, Died)
        assert "filled the volume shared beyond 4 MiB or 100,000 entries, its quota" in ended.text
        assert writer.run_code("import os; os.unlink('/volumes/shared/big'); 7").value == 7
        assert writer.run_code("open('/volumes/shared/small', 'w').write('x')").value == 1
    assert sandbox.run_code("x").value == 1  # which had the volume, too, and wrote nothing


@pytest.mark.needs_root(reason="it mounts")
def test_what_is_mounted_below_a_volume_stays_out(tmp_path: Path, folders: dict[str, Path]) -> None:
    below = folders["data"] / "below"
    below.mkdir()
    with contextlib.ExitStack() as stack:
        stack.callback(below.rmdir)
        subprocess.run(["mount", "-t", "tmpfs", "none", str(below)], check=True)
        stack.callback(subprocess.run, ["umount", str(below)], check=True)
        (below / "secret").write_text("secret")
        with Sandbox(volumes={"data": str(folders["data"])}) as sandbox:
            assert sandbox.run_command("ls /volumes/data/below; touch /volumes/data/below/x").stdout == b""
        assert os.listdir(below) == ["secret"]


def test_folders_that_code_writes_to_are_kept_apart(sandbox: Sandbox, folders: dict[str, Path]) -> None:
    inner = folders["shared"] / "inner"
    inner.mkdir(exist_ok=True)
    sandbox.run_code("0")
    for options in ({"work_dir": str(inner)}, {"volumes": {"other": str(inner)}}):
        with pytest.raises(InvalidParams, match="of a live sandbox"), Sandbox(options) as other:
            other.run_code("0")


def test_a_folder_that_is_gone_or_closed_is_refused_at_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with Sandbox(volumes={"data": str(folder)}) as sandbox:
        folder.rmdir()
        with pytest.raises((InvalidParams, SandboxStartError), match="data"):
            sandbox.run_code("0")


def test_a_volume_of_the_engine_is_mounted_by_name(request: pytest.FixtureRequest) -> None:
    name = f"agent-tools-test-{os.getpid()}"
    subprocess.run(["docker", "volume", "create", name], check=True, capture_output=True)
    remove = ["docker", "volume", "rm", "-f", name]
    request.addfinalizer(lambda: subprocess.run(remove, check=True, capture_output=True))
    with Sandbox(volumes={"lake": name}, transport="stdio") as sandbox:
        assert sandbox.run_code("import os; os.listdir('/volumes/lake')").value == []
        assert sandbox.run_command("touch /volumes/lake/x").exit_code != 0
    with (
        pytest.raises(SandboxStartError, match="no volume 'agent-tools-none'"),
        Sandbox(volumes={"lake": "agent-tools-none"}) as missing,
    ):
        missing.run_code("0")


def test_a_socket_in_a_volume_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("x.sock")
        listening.listen()
        with pytest.raises(InvalidParams, match="holds a socket"):
            Sandbox(volumes={"data": str(tmp_path)})
