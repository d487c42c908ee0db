"""The tar of a workspace, without what was to be left out."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path, PurePosixPath

import pytest

from agent_tools.errors import FileRejected
from agent_tools.integrations.openai_sandbox_agents import MAX_NAME, without

SKIPPED = {PurePosixPath("left"), PurePosixPath("some/left.txt")}


def packed(folder: Path) -> io.BytesIO:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        tar.add(folder, ".")
    made.seek(0)
    return made


def test_paths_and_what_lies_below_them_are_left_out(tmp_path: Path) -> None:
    for name in ("kept.txt", "left/a/b.txt", "some/left.txt", "some/kept.txt", "leftover"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to("/etc/passwd")
    kept = io.BytesIO()
    without(packed(tmp_path), SKIPPED, kept)
    kept.seek(0)
    with tarfile.open(fileobj=kept) as tar:
        names = {str(PurePosixPath(member.name)) for member in tar}
        assert names == {".", "kept.txt", "some", "some/kept.txt", "leftover", "link"}
        assert tar.getmember("./link").linkname == "/etc/passwd"
        content = tar.extractfile("./some/kept.txt")
        assert content
        assert content.read() == b"some/kept.txt"


@pytest.mark.parametrize("data", [b"no tar", b"x" * 2000], ids=["short", "noise"])
def test_what_is_no_tar_is_refused(data: bytes) -> None:
    with pytest.raises(FileRejected, match="malformed"):
        without(io.BytesIO(data), SKIPPED, io.BytesIO())


def test_a_path_that_no_file_can_have_is_refused() -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("a" * (MAX_NAME + 1)))
    made.seek(0)
    with pytest.raises(FileRejected, match="no file can have"):
        without(made, SKIPPED, io.BytesIO())


def test_a_sparse_file_is_refused() -> None:
    """Its size is free in the archive, and would be the host's in a copy."""
    member = tarfile.TarInfo("hole")
    member.type, member.size = tarfile.GNUTYPE_SPARSE, 512
    head = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    head[386:410] = b"00000000000\0" + b"00000001000\0"  # where its data are
    head[483:495] = b"77777777777\0"  # the size with the holes
    head[148:156] = b"%06o\0 " % sum(head[:148] + b" " * 8 + head[156:512])
    with pytest.raises(FileRejected, match="sparse"):
        without(io.BytesIO(bytes(head) + bytes(512) + bytes(1024)), SKIPPED, io.BytesIO())
