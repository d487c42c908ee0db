"""The file access tool: what may be read, and that nothing else is."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from agent_tools.errors import InvalidParams, ToolServiceError
from agent_tools.results.execution import StagedFile
from agent_tools.tools import TOOL_REGISTRY, FileAccess

SECRET = "a secret of the host"


class Inbox:
    """Takes files, and keeps what was in them."""

    def __init__(self, error: str = "") -> None:
        self.error = error
        self.contents: dict[str, bytes] = {}

    def stage(self, files: Sequence[str] | None) -> tuple[StagedFile, ...]:
        (path,) = files or ()
        if self.error:
            return (StagedFile(path, None, error=self.error),)
        self.contents[Path(path).name] = Path(path).read_bytes()
        return (StagedFile(path, Path(path).name),)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "sub").mkdir(parents=True)
    (folder / "data.csv").write_text("a,b\n1,2\n")
    (folder / "sub" / "deep.csv").write_text("c\n3\n")
    (tmp_path / "secret.txt").write_text(SECRET)
    return folder


def test_it_is_registered() -> None:
    assert TOOL_REGISTRY["file_access"] is FileAccess


def test_a_file_is_told_and_given(root: Path) -> None:
    inbox = Inbox()
    told = FileAccess({"root": str(root)}, into=inbox).call('{"path": "data.csv"}')
    assert "data.csv: 8 bytes." in told
    assert "| a | integer | 0 | 1 |" in told
    assert told.endswith("it is available as 'data.csv' in its working directory.")
    assert inbox.contents == {"data.csv": b"a,b\n1,2\n"}
    assert str(root) not in told


@pytest.mark.parametrize("path", ["sub/deep.csv", "./sub/deep.csv", "sub//deep.csv"])
def test_files_below_are_read_too(root: Path, path: str) -> None:
    assert "deep.csv: 4 bytes." in FileAccess({"root": str(root)}).call({"path": path})


@pytest.mark.parametrize("params", ["", "{}", {"path": "."}])
def test_without_a_path_files_are_listed(root: Path, params: str) -> None:
    listing = FileAccess({"root": str(root)}).call(params)
    assert listing == "There are these files:\n\n```\ndata.csv (8 bytes)\nsub/deep.csv (4 bytes)\n```"


def test_a_list_says_that_there_are_more(root: Path) -> None:
    for number in range(60):
        (root / f"{number:02}").touch()
    listing = FileAccess({"root": str(root)}).call("")
    assert listing.count(" bytes)\n") == 50
    assert listing.endswith("\n```\n\nThere are more.")


@pytest.mark.parametrize("name", ["a\nb.csv (9 bytes)", "a\r\nb", "a\x85b", "a\x0bb", "a\x1b[2Kb", "```\nend\n```"])
def test_a_name_takes_one_line_of_the_list_and_ends_no_fence(root: Path, name: str) -> None:
    (root / name).touch()
    head, blank, opened, *files, closed = FileAccess({"root": str(root)}).call("").splitlines()
    assert (head, blank, opened) == ("There are these files:", "", closed)
    assert set(opened) == {"`"}
    assert len(files) == 3
    assert all(opened not in file for file in files)


def test_a_name_takes_one_line_of_a_refusal(root: Path) -> None:
    with pytest.raises(ToolServiceError) as refusal:
        FileAccess({"root": str(root)}).call({"path": "a\nb"})
    assert refusal.value.message.startswith("There is no file a\\nb that may be read. There are these files:\n\n```\n")


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "sub/../../secret.txt",
        "sub/../data.csv",
        "{secret}",
        "~/x",
        "/etc/passwd",
        "..",
        "a\0b",
        "sub/..",
    ],
)
def test_paths_that_lead_elsewhere_are_refused(root: Path, path: str) -> None:
    path = path.replace("{secret}", str(root.parent / "secret.txt"))
    with pytest.raises(ToolServiceError, match="Only paths relative to the folder can be read"):
        FileAccess({"root": str(root)}, into=Inbox()).call({"path": path})


def _link(root: Path) -> str:
    (root / "x").symlink_to(root.parent / "secret.txt")
    return "x"


def _link_inside(root: Path) -> str:
    (root / "x").symlink_to(root / "data.csv")
    return "x"


def _linked_folder(root: Path) -> str:
    (root / "x").symlink_to(root.parent)
    return "x/secret.txt"


def _pipe(root: Path) -> str:
    os.mkfifo(root / "x")
    return "x"


def _socket(root: Path) -> str:
    here = os.getcwd()
    os.chdir(root)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("x")
    os.chdir(here)
    return "x"


def _folder(root: Path) -> str:
    return "sub"


def _missing(root: Path) -> str:
    return "nothing.csv"


def _below_a_file(root: Path) -> str:
    return "data.csv/x"


@pytest.mark.parametrize(
    "made", [_link, _link_inside, _linked_folder, _pipe, _socket, _folder, _missing, _below_a_file]
)
def test_only_regular_files_are_opened_and_no_link_is_followed(root: Path, made: object) -> None:
    inbox, path = Inbox(), made(root)  # type: ignore[operator]
    with pytest.raises(ToolServiceError, match=r"that may be read\. There are these files") as refusal:
        FileAccess({"root": str(root)}, into=inbox).call({"path": path})
    assert inbox.contents == {}
    assert str(root) not in refusal.value.message


def test_a_device_is_not_opened() -> None:
    with pytest.raises(ToolServiceError, match="may be read"):
        FileAccess({"root": "/dev"}).call({"path": "zero"})


def test_large_files_are_refused(root: Path) -> None:
    with pytest.raises(ToolServiceError, match=r"has 8 bytes, more than 5 \(max_bytes\)"):
        FileAccess({"root": str(root), "max_bytes": 5}).call({"path": "data.csv"})


def test_what_was_opened_is_given_whatever_the_name_means_by_then(root: Path) -> None:
    class Swapping(Inbox):
        def stage(self, files: Sequence[str] | None) -> tuple[StagedFile, ...]:
            (root / "data.csv").unlink()
            (root / "data.csv").symlink_to(root.parent / "secret.txt")
            return super().stage(files)

    inbox = Swapping()
    FileAccess({"root": str(root)}, into=inbox).call({"path": "data.csv"})
    assert inbox.contents == {"data.csv": b"a,b\n1,2\n"}


def test_a_root_behind_a_link_is_meant_by_whoever_gave_it(root: Path, tmp_path: Path) -> None:
    (tmp_path / "way").symlink_to(root)
    assert "8 bytes" in FileAccess({"root": str(tmp_path / "way")}).call({"path": "data.csv"})


def test_a_file_that_cannot_be_brought_is_told(root: Path) -> None:
    with pytest.raises(ToolServiceError, match=r"data\.csv could not be copied to the code interpreter: disk full"):
        FileAccess({"root": str(root)}, into=Inbox("disk full")).call({"path": "data.csv"})


@pytest.mark.parametrize("cfg", [{}, {"root": "/no/such/folder"}, {"root": "/etc/passwd"}])
def test_a_root_is_needed(cfg: dict[str, str]) -> None:
    with pytest.raises(InvalidParams, match="is not a folder"):
        FileAccess(cfg)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(InvalidParams, match="no option 'roots'"):
        FileAccess({"roots": "/tmp"})
