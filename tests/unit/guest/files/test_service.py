"""The file service for any path, as the host asks it: a real server on a socket, without a sandbox."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_tools.errors import InvalidParams
from agent_tools.guest.files import archive
from agent_tools.limits import Limits
from agent_tools.runtime.files.archives import Archives, opened
from agent_tools.runtime.files.file_conversation import Conversation
from agent_tools.runtime.files.guest_files import GuestFiles
from tests.fuzz.targets.loaded_archives import load, tar
from tests.skills import skill_folder
from tests.unit.runtime.files.file_server import AS_USER

SERVER = """
import sys
import tests.nursery  # gives an old Python what the guest needs
from agent_tools.guest.files import service
service.serve(int(sys.argv[1]), sys.argv[2])
"""


@pytest.fixture
def files(tmp_path: Path) -> Iterator[GuestFiles]:
    servers: list[subprocess.Popen[bytes]] = []

    def connect(max_parts: int) -> Conversation:
        ours, theirs = socket.socketpair()
        with theirs:
            argv = [*AS_USER, sys.executable, "-c", SERVER, str(theirs.fileno()), str(tmp_path)]
            servers.append(subprocess.Popen(argv, pass_fds=[theirs.fileno()]))
        return Conversation(ours, max_parts)

    made = GuestFiles(Limits(), connect)
    yield made
    made.close()
    for server in servers:
        server.wait(30)


BELOW_A_FILE: dict[str, Callable[[GuestFiles], object]] = {
    "write": lambda files: files.write("file/child", b"x"),
    "write deeper": lambda files: files.write("file/child/grandchild", b"x"),
    "make_dir": lambda files: files.make_dir("file/child"),
    "make_dir deeper": lambda files: files.make_dir("file/child/grandchild"),
    "move": lambda files: files.move("other", "file/child"),
    "read": lambda files: files.read("file/child"),
    "scan": lambda files: files.scan("file"),
}


@pytest.mark.parametrize("do", BELOW_A_FILE.values(), ids=BELOW_A_FILE)
def test_a_file_is_no_folder_to_put_anything_in(
    files: GuestFiles, tmp_path: Path, do: Callable[[GuestFiles], object]
) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    (tmp_path / "other").write_bytes(b"other")
    with pytest.raises(NotADirectoryError):
        do(files)
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == {
        "file": b"kept",
        "other": b"other",
    }


def test_a_folder_is_not_made_over_a_file(files: GuestFiles, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    with pytest.raises(FileExistsError):
        files.make_dir("file")
    files.make_dir("folder")
    files.make_dir("folder")
    assert (tmp_path / "folder").is_dir()


def nest(folder: Path, depth: int) -> None:
    """Make a folder with two lines of folders in it that go down so far, and a file at the end of each."""
    for name in ("one", "two"):
        (folder / name).mkdir(parents=True)
        here = os.open(folder / name, os.O_RDONLY)
        for _ in range(depth):
            os.mkdir("d", dir_fd=here)
            above, here = here, os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(above)
        os.close(os.open("leaf", os.O_CREAT, dir_fd=here))
        os.close(here)


def test_folders_of_any_depth_are_removed(files: GuestFiles, tmp_path: Path) -> None:
    nest(tmp_path / "deep", 2_500)
    (tmp_path / "kept").write_bytes(b"kept")
    (tmp_path / "deep" / "one" / "link").symlink_to(tmp_path, target_is_directory=True)
    files.remove("deep", recursive=True)
    assert os.listdir(tmp_path) == ["kept"]


def test_entries_that_are_links_can_be_followed(files: GuestFiles, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"1234567")
    for name, target in (("a", "folder"), ("b", "file"), ("c", "nowhere"), ("d", "d"), ("e", "file/x")):
        (tmp_path / name).symlink_to(target)
    kinds = {each.name: each.kind for each in files.scan(".")}
    assert kinds == {"folder": "folder", "file": "file", **dict.fromkeys("abcde", "link")}
    followed = {each.name: each for each in files.scan(".", follow=True)}
    assert {name: each.kind for name, each in followed.items()} == {**kinds, "a": "folder", "b": "file"}
    assert (followed["b"].size, followed["b"].path) == (7, "b")


def test_what_cannot_be_read_is_left_out_of_an_archive_and_logged(
    files: GuestFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nest(tmp_path / "deep", 2_500)  # a longer path than Linux opens
    (tmp_path / "kept").write_bytes(b"kept")
    saved = b"".join(Archives(files, Limits()).save(".", 2**30))
    with tarfile.open(fileobj=io.BytesIO(saved)) as tar:
        assert "./kept" in tar.getnames()
    (record,) = caplog.records
    assert record.getMessage().count("File name too long") == 2
    files.remove("deep", recursive=True)
    assert [entry.name for entry in files.scan(".")] == ["kept"]


def test_files_that_vanish_or_shrink_while_they_are_saved_spoil_no_archive(files: GuestFiles, tmp_path: Path) -> None:
    size = 8 * 2**20  # more than a socket holds: the server waits in the midst of it
    (tmp_path / "a").write_bytes(b"a" * size)
    for name in ("b", "c"):
        (tmp_path / name).write_bytes(name.encode())
    pieces = Archives(files, Limits()).save(".", 2**30)
    first = next(pieces)
    os.truncate(tmp_path / "a", 1)
    (tmp_path / "b").unlink()
    with tarfile.open(fileobj=io.BytesIO(first + b"".join(pieces))) as tar:
        assert tar.getnames() == [".", "./a", "./c"]
        content = tar.extractfile("./a")
        assert content
        assert content.read().strip(b"a").strip(b"\0") == b""


def test_of_many_files_that_cannot_be_read_the_number_is_logged(
    files: GuestFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1_025):
        (tmp_path / f"{number}").touch(mode=0)
    b"".join(Archives(files, Limits()).save(".", 2**30))
    (record,) = caplog.records
    assert record.getMessage().count("Permission denied") == 20
    assert record.getMessage().endswith("(Permission denied) and 1,005 more")


def test_an_entry_that_becomes_a_file_while_it_is_saved_spoils_no_archive(tmp_path: Path) -> None:
    class Late(tarfile.TarFile):
        def gettarinfo(self, name: Any = None, arcname: str | None = None, fileobj: Any = None) -> tarfile.TarInfo:
            if arcname == "./a":
                (tmp_path / "a").unlink()
                (tmp_path / "a").write_bytes(b"a" * 700)
            return super().gettarinfo(name, arcname, fileobj)

    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").write_bytes(b"b")
    saved = io.BytesIO()
    with Late.open(fileobj=saved, mode="w") as tar:
        assert archive._add(tar, str(tmp_path)) == []
    saved.seek(0)
    with tarfile.open(fileobj=saved) as tar:
        assert tar.getnames() == [".", "./b"]


def evil() -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as new:
        member = tarfile.TarInfo("../outside")
        member.size = 1
        new.addfile(member, io.BytesIO(b"x"))
    return archive.getvalue()


@pytest.mark.parametrize("data", [b"", b"junk", b"x" * 100_000, evil()], ids=["none", "junk", "much junk", "outside"])
def test_what_is_no_archive_is_refused_and_the_next_request_answered(files: GuestFiles, data: bytes) -> None:
    with pytest.raises(InvalidParams, match="give what `save` made"):
        Archives(files, Limits()).load(".", opened(data)[1])
    assert files.scan(".") == []


def test_a_folder_of_the_host_is_copied_with_the_rights_to_execute(files: GuestFiles, tmp_path: Path) -> None:
    skill = skill_folder(tmp_path / "host" / "m", {"scripts/a.py": "print(1)"})
    (skill / "scripts" / "a.py").chmod(0o755)
    Archives(files, Limits()).put_folder("there", skill)
    assert files.read("there/m/scripts/a.py") == b"print(1)"
    assert files.stat("there/m/scripts/a.py").mode & 0o777 == 0o755
    assert files.read("there/m/SKILL.md") == (skill / "SKILL.md").read_bytes()


COMPRESS = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}


@pytest.mark.cost
@pytest.mark.parametrize("compress", COMPRESS.values(), ids=COMPRESS)
def test_a_compressed_archive_of_four_times_the_size_costs_four_times_as_much(
    compress: Callable[[bytes], bytes],
) -> None:
    def processor_time(archive: bytes) -> float:
        before = time.process_time()
        load([archive])
        return time.process_time() - before

    archives = [compress(tar(("zeros", bytes(mebibytes << 20)))) for mebibytes in (8, 32)]
    small, large = (min(processor_time(archive) for _ in range(3)) for archive in archives)
    assert large < 6 * small
