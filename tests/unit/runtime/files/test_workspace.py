import contextlib
import os
import pickle
import socket
import stat
import sys
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent_tools.engines.guest import Guest
from agent_tools.errors import FileRejected, InvalidParams
from agent_tools.limits import Limits
from agent_tools.machine.folder import moment
from agent_tools.results.execution import Changes, Execution, FileChange, StagedFile
from agent_tools.runtime.files.work_dir import prepare_work_dir
from agent_tools.runtime.files.workspace import Workspace, safe_name, watch_changes

NOBODY = 65534
ME = Guest(container_ids=(os.getuid(), os.getgid()), host_ids=(os.getuid(), os.getgid()))
GUEST = Guest(container_ids=(10001, 10001), host_ids=(10001, 10001)) if os.getuid() == 0 else ME


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return prepare_work_dir(tmp_path / "work", GUEST)


@pytest.fixture
def workspace(folder: Path) -> Workspace:
    return Workspace(folder, GUEST, Limits())


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file of the caller's, outside work_dir."""
    path = tmp_path / "mine" / "data.csv"
    path.parent.mkdir()
    path.write_text("a,b\n1,2\n")
    return path


def stage(workspace: Workspace, source: object) -> StagedFile:
    (staged,) = workspace.stage([str(source)])
    return staged


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Without root's right to read everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


# -- prepare_work_dir -------------------------------------------------------------------------------------------------


def test_a_missing_folder_is_made_private_and_given_to_the_guest(tmp_path: Path) -> None:
    path = prepare_work_dir(tmp_path / "a" / "b", GUEST)
    assert path == tmp_path / "a" / "b"
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert (path.stat().st_uid, path.stat().st_gid) == GUEST.host_ids


def test_a_folder_that_is_there_keeps_its_mode_and_content(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir(mode=0o750)
    (tmp_path / "old" / "notes.txt").write_text("kept")
    path = prepare_work_dir(tmp_path / "old", ME)
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert (path / "notes.txt").read_text() == "kept"


def test_the_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert prepare_work_dir(Path("x/../work"), ME) == tmp_path / "work"
    assert prepare_work_dir(Path("~/other"), ME) == tmp_path / "other"


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/etc", "/etc/ssl", "/proc", "/proc/self", "/sys", "/dev", "/dev/shm", "/run", "/run/lock"),
        *("/var", "/var/run", "/usr", "/bin", "/lib", "/boot", "/tmp/../etc", "//etc", "/../proc", "/opt", "/srv"),
    ],
)
def test_parts_of_the_system_are_refused(path: str) -> None:
    with pytest.raises(InvalidParams, match=r"work_dir .* is part of the system"):
        prepare_work_dir(Path(path), ME)


def test_a_folder_of_all_users_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    for path in (shared, Path("/tmp"), Path("/var/tmp")):
        with pytest.raises(InvalidParams, match="belongs to all users"):
            prepare_work_dir(path, ME)


@pytest.mark.parametrize("path", [".", "above", "above/run", "above/run/agent_tools-{}", "above/run/agent_tools-{}/x"])
def test_the_folder_of_run_directories_is_refused_with_what_holds_it(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "above/run").mkdir(parents=True)
    monkeypatch.setenv("AGENT_TOOLS_RUN_DIR", str(tmp_path / "above/run"))
    with pytest.raises(InvalidParams, match="with the sockets of sandboxes"):
        prepare_work_dir(tmp_path / path.format(os.getuid()), ME)
    assert prepare_work_dir(tmp_path / "above/work", ME).is_dir()


@pytest.mark.parametrize("path", ["~", "~/..", "~/x/.."])
def test_the_home_folder_and_what_holds_it_are_refused(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "people" / "me").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "people" / "me"))
    with pytest.raises(InvalidParams, match="home"):
        prepare_work_dir(Path(path), ME)


def test_a_link_is_refused_even_to_a_harmless_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(InvalidParams, match="symbolic link"):
        prepare_work_dir(tmp_path / "link", ME)


def test_a_way_through_a_link_into_the_system_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").symlink_to("/")
    for path in ("root/etc", "root/proc/sys", "root/usr"):
        with pytest.raises(InvalidParams, match="is part of the system"):
            prepare_work_dir(tmp_path / path, ME)


def test_a_way_through_a_link_to_the_home_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "var" / "home" / "me").mkdir(parents=True)
    (tmp_path / "home").symlink_to("var/home")
    monkeypatch.setenv("HOME", str(tmp_path / "home" / "me"))
    with pytest.raises(InvalidParams, match="home"):
        prepare_work_dir(tmp_path / "var" / "home" / "me", ME)


def test_a_file_is_refused(mine: Path) -> None:
    for path in (mine, mine / "below"):
        with pytest.raises(InvalidParams):
            prepare_work_dir(path, ME)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"], ids=["too long", "NUL"])
def test_an_impossible_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidParams, match="work_dir"):
        prepare_work_dir(tmp_path / name, ME)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_a_folder_with_a_socket_that_somebody_serves_is_refused(work_dir: Path, kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_UNIX, kind) as served:
        served.bind(str(work_dir / "docker.sock"))
        if kind != socket.SOCK_DGRAM:
            served.listen()
        with pytest.raises(InvalidParams, match=r"socket \('docker.sock'\)"):
            prepare_work_dir(work_dir, ME)


def test_a_socket_is_refused_though_it_takes_nobody_more(work_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX) as served, socket.socket(socket.AF_UNIX) as first:
        served.bind(str(work_dir / "docker.sock"))
        served.listen(0)
        first.connect(str(work_dir / "docker.sock"))
        with pytest.raises(InvalidParams, match="socket"):
            prepare_work_dir(work_dir, ME)


def test_a_served_socket_in_a_folder_of_it_is_refused(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work_dir / "a" / "run").mkdir(parents=True)
    monkeypatch.chdir(work_dir / "a" / "run")  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as served:
        served.bind("docker.sock")
        served.listen()
        with pytest.raises(InvalidParams, match=r"socket \('a/run/docker.sock'\)"):
            prepare_work_dir(work_dir, ME)
    assert prepare_work_dir(work_dir, ME) == work_dir


def test_many_entries_in_folders_hide_no_socket_beside_them(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_tools.machine.folder.MAX_SOCKET_SEARCH", 10)
    for name in "abcd":
        (work_dir / name / "1" / "2" / "3" / "4").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(str(work_dir / "s"))
        served.listen()
        with pytest.raises(InvalidParams, match="socket"):
            prepare_work_dir(work_dir, ME)


@pytest.mark.parametrize("name", ["s", "s" * 255, "a\nb"])
def test_a_socket_that_earlier_code_left_is_no_hindrance(
    work_dir: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(work_dir / "s"))
    (work_dir / "s").rename(work_dir / name)
    assert prepare_work_dir(work_dir, ME) == work_dir
    assert names(work_dir) == [name]


@pytest.mark.needs_root(reason="only root can make files of others")
def test_a_socket_of_the_guest_is_no_hindrance_and_of_anyone_else_it_is(work_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(work_dir / "s"))
        left.listen()
        os.chown(work_dir / "s", *GUEST.host_ids)
        assert prepare_work_dir(work_dir, GUEST) == work_dir
    for owner in (0, NOBODY):
        os.chown(work_dir / "s", owner, owner)
        with pytest.raises(InvalidParams, match="socket"):
            prepare_work_dir(work_dir, GUEST)


# -- safe_name --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("data.csv", "data.csv"),
        ("My report (final).xlsx", "My report (final).xlsx"),
        ("数据.csv", "数据.csv"),
        ("../../etc/passwd", "passwd"),
        ("/etc/shadow", "shadow"),
        ("..", "file"),
        (".", "file"),
        ("", "file"),
        ("   ", "file"),
        ("a/", "file"),
        ("..\\..\\boot.ini", "boot.ini"),
        ("C:\\Users\\me\\a.txt", "a.txt"),
        ("C:a.txt", "C_a.txt"),
        ('a<b>c:"d"|e?f*.txt', "a_b_c__d__e_f_.txt"),
        ("a\nb\tc\r.txt", "a_b_c_.txt"),
        ("a\0b.txt", "a_b.txt"),
        ("a\x7f\x9b.txt", "a__.txt"),
        ("evil\u202etxt.exe", "evil_txt.exe"),
        ("a\u2066b\u200fc\u061cd.txt", "a_b_c_d.txt"),
        (".bashrc", "bashrc"),
        ("...", "file"),
        ("-rf", "rf"),
        ("--.-x", "x"),
        ("- x", "x"),
        (". . .x", "x"),
        ("a.b.c.tar.gz", "a.b.c.tar.gz"),
        ("cafe\u0301.txt", "caf\u00e9.txt"),
        ("\udcff.txt", "_.txt"),
        ("x" * 5000 + ".csv", "x" * 196 + ".csv"),
        ("x." + "y" * 5000, "x." + "y" * 198),
        ("é" * 5000 + ".csv", "é" * 98 + ".csv"),
    ],
    ids=lambda name: ascii(name[:24]),
)
def test_a_name_is_made_harmless(name: str, safe: str) -> None:
    assert safe_name(name) == safe


@given(st.text())
@example(". .")
@example("-\u00a0")
@example("." + "\U0001f600" * 16)
@example("a." + "\U0001f600" * 15)
def test_any_name_is_made_harmless(name: str) -> None:
    safe = safe_name(name)
    assert safe
    assert safe not in {".", ".."}
    assert not safe[0].isspace()
    assert not safe.startswith((".", "-"))
    assert "/" not in safe
    assert not any(unicodedata.category(char) == "Cc" for char in safe)
    assert len(safe.encode()) <= 216


@given(st.text())
def test_a_harmless_name_stays(name: str) -> None:
    safe = safe_name(name)
    assert len(safe) > 100 or safe_name(safe) == safe


# -- stage ------------------------------------------------------------------------------------------------------------


def test_a_local_file_is_copied(workspace: Workspace, folder: Path, mine: Path) -> None:
    assert stage(workspace, mine) == StagedFile(str(mine), "data.csv")
    copy = folder / "data.csv"
    assert copy.read_bytes() == mine.read_bytes()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o644
    assert copy.stat().st_uid == GUEST.host_ids[0]


@pytest.mark.parametrize("prefix", ["file://", "FILE://", "file://localhost", "file:"])
def test_a_file_url_is_copied(workspace: Workspace, folder: Path, mine: Path, prefix: str) -> None:
    spaced = mine.rename(mine.with_name("my data.csv"))
    url = prefix + str(spaced).replace(" ", "%20")
    assert stage(workspace, url) == StagedFile(url, "my data.csv")
    assert names(folder) == ["my data.csv"]


def test_a_path_below_the_home_folder_is_copied(
    workspace: Workspace, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(mine.parent))
    assert stage(workspace, "~/data.csv").name == "data.csv"


def test_a_relative_path_is_copied(workspace: Workspace, mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mine.parent)
    assert stage(workspace, "data.csv").name == "data.csv"


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("/none/such.csv", "no such file or directory"),
        ("/tmp", "it is not a regular file"),
        ("/dev/zero", "it is not a regular file"),
        ("/dev/null/x", "not a directory"),
        ("a\0b", "the name is not usable"),
        ("", "it is not a regular file"),
        ("ftp://host/file", "only paths, file://, http:// and https:// are known"),
        ("s3://bucket/file", "only paths, file://, http:// and https:// are known"),
        ("file://[", "the name is not usable"),
    ],
)
def test_what_cannot_be_had_is_told(workspace: Workspace, folder: Path, source: str, error: str) -> None:
    assert stage(workspace, source) == StagedFile(source, None, error=error)
    assert names(folder) == []


def test_a_fifo_is_not_waited_for(workspace: Workspace, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert stage(workspace, tmp_path / "fifo").error == "it is not a regular file"


def test_a_file_the_caller_may_not_read_is_told(workspace: Workspace, mine: Path) -> None:
    mine.chmod(0)
    with unprivileged():
        assert stage(workspace, mine).error == "permission denied"


def test_a_file_that_fails_while_it_is_read_leaves_nothing(workspace: Workspace, folder: Path) -> None:
    staged = stage(workspace, "/proc/self/mem")
    assert (staged.name, bool(staged.error)) == (None, True)
    assert names(folder) == []


def test_one_bad_file_does_not_keep_the_others_out(workspace: Workspace, folder: Path, mine: Path) -> None:
    staged = workspace.stage(["/none", str(mine), "/tmp"])
    assert [file.name for file in staged] == [None, "data.csv", None]
    assert names(folder) == ["data.csv"]


def test_a_link_of_the_callers_is_followed(workspace: Workspace, folder: Path, mine: Path, tmp_path: Path) -> None:
    (tmp_path / "latest.csv").symlink_to(mine)
    assert stage(workspace, tmp_path / "latest.csv").name == "latest.csv"
    assert not (folder / "latest.csv").is_symlink()
    assert (folder / "latest.csv").read_bytes() == mine.read_bytes()


def test_files_of_the_same_name_are_numbered(workspace: Workspace, folder: Path, tmp_path: Path) -> None:
    sources = [tmp_path / part / "data.tar.gz" for part in "abc"]
    for source in sources:
        source.parent.mkdir()
        source.write_text(str(source))
    staged = workspace.stage([str(source) for source in sources])
    assert [(file.name, file.is_renamed) for file in staged] == [
        ("data.tar.gz", False),
        ("data.tar-1.gz", True),
        ("data.tar-2.gz", True),
    ]
    assert [(folder / str(file.name)).read_text() for file in staged] == [str(source) for source in sources]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("report: Q1?.csv", "report_ Q1_.csv"),
        *(("-x.csv", "x.csv"), (".env", "env"), ("a*b.csv", "a_b.csv"), ("e\u0301.csv", "\u00e9.csv")),
        (f"{'n' * 250}.csv", f"{'n' * 196}.csv"),
    ],
)
def test_a_file_whose_name_was_cleaned_is_told_as_renamed(
    workspace: Workspace, tmp_path: Path, given: str, name: str
) -> None:
    (tmp_path / given).write_text("1")
    for _ in range(2):  # also where it is there already
        assert stage(workspace, tmp_path / given) == StagedFile(str(tmp_path / given), name, is_renamed=True)


def test_what_was_brought_in_can_be_taken_out_and_nothing_else(workspace: Workspace, folder: Path, mine: Path) -> None:
    (folder / "same.csv").write_text("a,b")
    (mine.parent / "same.csv").write_text("a,b")
    for source in (mine, mine.parent / "same.csv"):
        workspace.unstage(str(stage(workspace, source).name))
    workspace.unstage("data.csv")
    assert names(folder) == ["same.csv"]


def test_what_lies_there_is_never_replaced(workspace: Workspace, folder: Path, mine: Path) -> None:
    (folder / "data.csv").write_text("the guest's")
    (folder / "data-1.csv").mkdir()
    assert stage(workspace, mine) == StagedFile(str(mine), "data-2.csv", is_renamed=True)
    assert (folder / "data.csv").read_text() == "the guest's"


def test_an_unchanged_file_is_not_copied_again(workspace: Workspace, folder: Path, mine: Path) -> None:
    stage(workspace, mine)
    before = (folder / "data.csv").stat()
    assert stage(workspace, mine) == StagedFile(str(mine), "data.csv")
    after = (folder / "data.csv").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert names(folder) == ["data.csv"]


def test_the_guests_edits_of_an_unchanged_file_survive(workspace: Workspace, folder: Path, mine: Path) -> None:
    stage(workspace, mine)
    (folder / "data.csv").write_text("edited")
    assert stage(workspace, mine).name == "data.csv"
    assert (folder / "data.csv").read_text() == "edited"


def test_a_changed_file_gets_a_new_name(workspace: Workspace, folder: Path, mine: Path) -> None:
    stage(workspace, mine)
    mine.write_text("other, longer content")
    assert stage(workspace, mine) == StagedFile(str(mine), "data-1.csv", is_renamed=True)
    assert (folder / "data.csv").read_text() == "a,b\n1,2\n"
    assert (folder / "data-1.csv").read_text() == "other, longer content"


def test_the_same_content_is_taken_from_an_earlier_session(folder: Path, mine: Path) -> None:
    stage(Workspace(folder, GUEST, Limits()), mine)
    before = (folder / "data.csv").stat()
    assert stage(Workspace(folder, GUEST, Limits()), mine) == StagedFile(str(mine), "data.csv")
    assert (folder / "data.csv").stat() == before
    assert names(folder) == ["data.csv"]


def test_other_content_of_the_same_size_is_not_taken_for_it(workspace: Workspace, folder: Path, mine: Path) -> None:
    (folder / "data.csv").write_text("a,b\n3,4\n")
    assert stage(workspace, mine).name == "data-1.csv"


def test_a_file_in_work_dir_is_used_where_it_is(workspace: Workspace, folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "own.txt").touch()
    source = folder / "x" / ".." / "sub" / "own.txt"
    assert stage(workspace, source) == StagedFile(str(source), "sub/own.txt")
    assert names(folder) == ["sub"]


def test_too_large_a_file_is_not_copied(folder: Path, mine: Path) -> None:
    workspace = Workspace(folder, GUEST, Limits(max_file_bytes=7))
    assert stage(workspace, mine).error == "it is larger than 7 bytes (max_file_bytes)"
    assert names(folder) == []


def test_a_file_of_exactly_the_largest_size_is_copied(folder: Path, mine: Path) -> None:
    assert stage(Workspace(folder, GUEST, Limits(max_file_bytes=8)), mine).name == "data.csv"


def test_a_file_larger_than_it_says_is_not_copied(folder: Path) -> None:
    workspace = Workspace(folder, GUEST, Limits(max_file_bytes=10))
    assert stage(workspace, "/proc/self/status").error == "it is larger than 10 bytes (max_file_bytes)"
    assert names(folder) == []


def test_too_many_files_are_refused_as_a_whole(folder: Path, mine: Path) -> None:
    workspace = Workspace(folder, GUEST, Limits())
    with pytest.raises(InvalidParams, match="101 files are more than 100 in one call"):
        workspace.stage([str(mine)] * 101)
    assert len(workspace.stage([str(mine)] * 100)) == 100


# -- what the guest may have planted ----------------------------------------------------------------------------------


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file outside work_dir that the guest would like to read or change."""
    path = tmp_path / "host" / "secret.txt"
    path.parent.mkdir()
    path.write_text("secret")
    return path


def test_a_planted_link_is_not_followed_as_a_source(workspace: Workspace, folder: Path, secret: Path) -> None:
    (folder / "innocent.txt").symlink_to(secret)
    assert stage(workspace, folder / "innocent.txt").error == "it is not a regular file"
    assert names(folder) == ["innocent.txt"]


def test_a_planted_link_to_a_folder_is_not_followed(workspace: Workspace, folder: Path, secret: Path) -> None:
    (folder / "sub").symlink_to(secret.parent)
    staged = stage(workspace, folder / "sub" / "secret.txt")
    assert (staged.name, bool(staged.error)) == (None, True)
    assert names(folder) == ["sub"]


@pytest.mark.parametrize("planted", ["innocent.txt", "sub/secret.txt"])
def test_a_planted_link_is_not_followed_on_another_way_in(
    workspace: Workspace, folder: Path, secret: Path, tmp_path: Path, planted: str
) -> None:
    (folder / "innocent.txt").symlink_to(secret)
    (folder / "sub").symlink_to(secret.parent)
    (tmp_path / "alias").symlink_to(tmp_path)
    staged = stage(workspace, tmp_path / "alias" / "work" / planted)
    assert (staged.name, bool(staged.error)) == (None, True)
    assert names(folder) == ["innocent.txt", "sub"]


@pytest.mark.parametrize("way", ["sub", "sub/innocent.txt"])
def test_a_planted_link_is_not_followed_where_a_link_of_the_callers_leads_to_it(
    workspace: Workspace, folder: Path, secret: Path, tmp_path: Path, way: str
) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "innocent.txt").symlink_to(secret)
    (tmp_path / "way").symlink_to(folder / way)
    source = tmp_path / "way" if way.endswith("txt") else tmp_path / "way" / "innocent.txt"
    assert stage(workspace, source).error == "it is not a regular file"
    assert names(folder) == ["sub"]


def test_a_planted_link_does_not_bend_a_way_through_work_dir(
    workspace: Workspace, folder: Path, mine: Path, tmp_path: Path
) -> None:
    (tmp_path / "host" / "a" / "b").mkdir(parents=True)
    (tmp_path / "host" / "mine").mkdir()
    (tmp_path / "host" / "mine" / "data.csv").write_text("secret")
    (folder / "sub").symlink_to(tmp_path / "host" / "a" / "b")
    assert stage(workspace, folder / "sub" / ".." / ".." / "mine" / "data.csv").name == "data.csv"
    assert (folder / "data.csv").read_bytes() == mine.read_bytes()


def test_nothing_is_written_through_a_planted_link(
    workspace: Workspace, folder: Path, mine: Path, secret: Path
) -> None:
    (folder / "data.csv").symlink_to(secret)
    assert stage(workspace, mine).name == "data-1.csv"
    assert secret.read_text() == "secret"


def test_a_planted_link_to_the_same_content_is_not_taken(workspace: Workspace, folder: Path, mine: Path) -> None:
    (folder / "data.csv").symlink_to(mine)
    assert stage(workspace, mine).name == "data-1.csv"
    assert not (folder / "data-1.csv").is_symlink()


def test_a_dangling_link_is_not_written_through(workspace: Workspace, folder: Path, mine: Path, tmp_path: Path) -> None:
    (folder / "data.csv").symlink_to(tmp_path / "made")
    assert stage(workspace, mine) == StagedFile(str(mine), "data-1.csv", is_renamed=True)
    assert not (tmp_path / "made").exists()


def test_a_planted_fifo_is_not_waited_for(workspace: Workspace, folder: Path, mine: Path) -> None:
    os.mkfifo(folder / "data.csv")
    assert stage(workspace, mine).name == "data-1.csv"
    assert stage(workspace, folder / "data.csv").error == "it is not a regular file"


def test_a_work_dir_that_became_a_link_is_not_written_to(
    workspace: Workspace, folder: Path, mine: Path, secret: Path
) -> None:
    folder.rmdir()
    folder.symlink_to(secret.parent)
    assert stage(workspace, mine).name is None
    assert names(secret.parent) == ["secret.txt"]


# -- changes ----------------------------------------------------------------------------------------------------------


def watched(folder: Path, **limits: int) -> Callable[[], Changes]:
    """Begin a run; what is returned ends it, and gives its changes."""
    return partial(watch_changes(folder, Limits(**limits)), ())  # type: ignore[arg-type]


def names_in(changes: Changes) -> list[str]:
    return [change.name for change in changes.files]


def tick(folder: Path) -> None:
    """Wait until the clock of the file system has gone on, which is coarse on older kernels."""
    before = moment(folder)
    while moment(folder).ns < before.end:
        time.sleep(0.001)


def test_new_and_changed_files_are_told_by_name(folder: Path) -> None:
    for name in ("same", "edited", "gone"):
        (folder / name).write_text(name)
    end = watched(folder)
    (folder / "edited").write_text("edited again")
    (folder / "new").write_text("new")
    (folder / "gone").unlink()
    changes = end()
    assert changes.files == (FileChange("edited", 12, is_new=False), FileChange("new", 3, is_new=True))
    assert (changes.is_complete, changes.note) == (True, "")
    tick(folder)
    assert watched(folder)().files == ()


@pytest.mark.parametrize("own_times", [True, False], ids=["with its own times", "with the times of the other"])
def test_a_file_replaced_by_one_of_the_same_size_is_changed(folder: Path, own_times: bool) -> None:
    (folder / "a").write_text("one")
    facts = (folder / "a").stat()
    end = watched(folder)
    (folder / "b").write_text("two")
    if not own_times:
        os.utime(folder / "b", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    (folder / "b").rename(folder / "a")
    assert end().files == (FileChange("a", 3, is_new=True),)


def test_files_in_subfolders_are_told_with_their_path(folder: Path) -> None:
    end = watched(folder)
    (folder / "out" / "deep").mkdir(parents=True)
    (folder / "out" / "deep" / "a.txt").write_text("1")
    (folder / "out" / "b.txt").touch()
    assert names_in(end()) == ["out/b.txt", "out/deep/a.txt"]


def test_files_of_a_folder_that_was_moved_are_told_and_no_others(folder: Path) -> None:
    for name in ("moved", "stays"):
        (folder / name / "deep").mkdir(parents=True)
        (folder / name / "deep" / "a.txt").write_text("1")
    tick(folder)
    end = watched(folder)
    (folder / "moved").rename(folder / "z")
    (folder / "stays" / "b.txt").write_text("1")
    assert end().files == (FileChange("stays/b.txt", 1, is_new=True), FileChange("z/deep/a.txt", 1, is_new=False))


def test_among_more_files_than_are_looked_at_none_is_told_that_did_not_change(folder: Path) -> None:
    for number in range(30):
        (folder / f"old-{number}").touch()
    tick(folder)
    told = set()
    for number in range(30):
        end = watched(folder, max_listed_entries=20)
        (folder / f"old-{number}").unlink()  # which moves the others in the order of the folder
        (folder / f"new-{number}").touch()
        changes = end()
        assert set(names_in(changes)) <= {f"new-{number}"}
        assert not changes.is_complete
        assert changes.note == "Not all files of work_dir could be looked at: some may be missing here."
        told.update(names_in(changes))
        tick(folder)
    assert told


def test_changes_that_are_read_late_are_those_of_their_run_alone(folder: Path) -> None:
    for name in ("by both", "by the later one"):
        (folder / name).touch()
    end = watched(folder)
    (folder / "by the first").touch()
    (folder / "by both").write_text("1")
    changes, same = end(), end()
    assert names_in(same) == ["by both", "by the first"]
    tick(folder)
    (folder / "new").touch()
    assert (names_in(changes), changes.is_complete) == (["by both", "by the first"], True)
    changes = end()
    tick(folder)
    later = watched(folder)
    for name in ("by both", "by the later one", "newer"):
        (folder / name).write_text("22")
    assert (names_in(changes), changes.is_complete) == (["by the first", "new"], False)
    assert names_in(same) == ["by both", "by the first"]
    assert names_in(later()) == ["by both", "by the later one", "newer"]


def test_changes_are_looked_for_once_and_only_when_they_are_read(folder: Path) -> None:
    looks: list[int] = []

    def find() -> Changes:
        looks.append(1)
        return Changes([FileChange("a", 1, is_new=True)], is_complete=False)

    execution = Execution(changed=Changes(find=find))
    assert repr(replace(execution, duration=1.0)) == "Execution(ok, 1 s)"
    assert (execution == Execution(), looks) == (True, [])
    assert pickle.loads(pickle.dumps(execution)).changes == (FileChange("a", 1, is_new=True),)
    assert (execution.changes_complete, len(execution.changes), looks) == (False, 1, [1])


def test_a_file_that_came_from_elsewhere_is_not_new_where_it_replaced_another(folder: Path) -> None:
    end = watch_changes(folder, Limits())
    for name in ("replaced", "new"):
        (folder / name).touch()
    assert [(change.name, change.is_new) for change in end({"replaced"}).files] == [("new", True), ("replaced", False)]


def test_links_fifos_and_folders_are_not_listed(folder: Path, secret: Path) -> None:
    end = watched(folder)
    (folder / "link").symlink_to(secret)
    (folder / "way out").symlink_to(secret.parent)
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "fifo")
    (folder / "empty").mkdir()
    assert end().files == ()


@pytest.mark.parametrize("place", [".", "sub"])
def test_only_so_many_entries_are_looked_at(folder: Path, place: str) -> None:
    end = watched(folder, max_listed_entries=10)
    (folder / place).mkdir(exist_ok=True)
    for number in range(20):
        (folder / place / str(number)).touch()
    changes = end()
    assert 0 < len(changes.files) <= 10
    assert not changes.is_complete


def test_folders_as_deep_as_can_be_are_no_error(folder: Path) -> None:
    end, here = watched(folder), folder
    for _ in range(100):
        here = here / "d"
        here.mkdir()
        (here / "f").touch()
    assert len(end().files) == 16


def test_names_that_are_no_text_are_listed_as_text(folder: Path) -> None:
    end = watched(folder)
    for name in (b"\xff\xfe.txt", "日本.txt".encode(), b"a\nb"):
        with open(os.path.join(os.fsencode(folder), name), "w"):
            pass
    assert names_in(end()) == [r"\xff\xfe.txt", "a\nb", "日本.txt"]


def test_of_a_folder_that_is_gone_nothing_is_known(folder: Path) -> None:
    end = watched(folder)
    folder.rmdir()
    changes = end()
    assert (changes.files, changes.is_complete) == ((), False)


# -- save_picture -----------------------------------------------------------------------------------------------------


def test_pictures_get_fresh_names(workspace: Workspace, folder: Path) -> None:
    paths = [Path(workspace.save_picture(b"\x89PNG", ".png")) for _ in range(20)]
    assert sorted(path.name for path in paths) == names(folder)
    assert len(names(folder)) == 20
    assert {(path.parent, path.suffix, path.read_bytes()) for path in paths} == {(folder, ".png", b"\x89PNG")}


def test_a_picture_goes_where_it_is_wanted(workspace: Workspace, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    path = Path(workspace.save_picture(b"\xff\xd8", ".jpg", tmp_path / "figures"))
    assert path.parent == tmp_path / "figures"
    assert path.read_bytes() == b"\xff\xd8"
    assert names(folder) == []


def test_a_folder_for_pictures_is_made_with_its_parents(workspace: Workspace, folder: Path, tmp_path: Path) -> None:
    path = Path(workspace.save_picture(b"\x89PNG", ".png", tmp_path / "a" / "figures"))
    assert path.parent == tmp_path / "a" / "figures"
    assert path.read_bytes() == b"\x89PNG"
    assert names(folder) == []


def test_a_picture_below_a_file_is_rejected(workspace: Workspace, mine: Path) -> None:
    with pytest.raises(FileRejected, match="a picture could not be saved"):
        workspace.save_picture(b"\x89PNG", ".png", mine / "figures")


FOLDERS: dict[str, Callable[[Path], object]] = {
    "a file": Path.touch,
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a link": lambda path: path.symlink_to(tempfile.gettempdir()),
}


@pytest.mark.parametrize("plant", FOLDERS.values(), ids=FOLDERS.keys())
def test_a_picture_that_cannot_be_saved_is_rejected(
    workspace: Workspace, tmp_path: Path, plant: Callable[[Path], object]
) -> None:
    plant(tmp_path / "figures")
    with pytest.raises(FileRejected, match="a picture could not be saved"):
        workspace.save_picture(b"\x89PNG", ".png", tmp_path / "figures")


# -- save_picture: a folder inside work_dir ---------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "outside" / "b").mkdir(parents=True)
    return tmp_path / "outside"


def untouched(outside: Path) -> bool:
    return [str(path.relative_to(outside)) for path in outside.rglob("*")] == ["b"]


@pytest.mark.parametrize("planted", ["a", "a/b", "a/b/c"])
def test_a_picture_does_not_go_through_a_planted_link(
    workspace: Workspace, folder: Path, outside: Path, planted: str
) -> None:
    (folder / planted).parent.mkdir(parents=True, exist_ok=True)
    (folder / planted).symlink_to(outside)
    with pytest.raises(FileRejected, match="a picture could not be saved"):
        workspace.save_picture(b"\x89PNG", ".png", folder / "a" / "b" / "c")
    assert untouched(outside)


WAYS_IN: dict[str, Callable[[Path, Path], Path]] = {
    "a link to what holds work_dir": lambda top, _: top / "alias" / "work",
    "a link to work_dir": lambda top, _: top / "to work",
    "a relative link": lambda top, _: top / "relative" / "work",
    "a link to a link": lambda top, _: top / "alias" / "alias" / "relative" / "work",
    "a way in, out and in": lambda top, folder: folder / ".." / "work",
    "a part that is left again": lambda _, folder: folder / "planted" / "..",
}


@pytest.mark.parametrize("way", WAYS_IN.values(), ids=WAYS_IN.keys())
def test_work_dir_is_known_on_every_way_to_it(
    workspace: Workspace, folder: Path, outside: Path, tmp_path: Path, way: Callable[[Path, Path], Path]
) -> None:
    (tmp_path / "alias").symlink_to(tmp_path)
    (tmp_path / "relative").symlink_to("alias/outside/..")
    (tmp_path / "to work").symlink_to(folder)
    (folder / "planted").symlink_to(outside)
    with pytest.raises(FileRejected):
        workspace.save_picture(b"\x89PNG", ".png", way(tmp_path, folder) / "planted" / "b" / "c")
    assert untouched(outside)
    path = Path(workspace.save_picture(b"\x89PNG", ".png", way(tmp_path, folder) / "figures" / "b"))
    assert path.read_bytes() == (folder / "figures" / "b" / path.name).read_bytes() == b"\x89PNG"


def test_a_link_of_the_callers_into_work_dir_meets_no_planted_one(
    workspace: Workspace, folder: Path, outside: Path, tmp_path: Path
) -> None:
    (folder / "sub").mkdir()
    (tmp_path / "way").symlink_to(folder / "sub")
    (folder / "sub" / "a").symlink_to(outside)
    with pytest.raises(FileRejected):
        workspace.save_picture(b"\x89PNG", ".png", tmp_path / "way" / "a" / "b" / "c")
    assert untouched(outside)


def test_work_dir_below_a_link_is_known(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    folder = prepare_work_dir(tmp_path / "alias" / "work", GUEST)
    (folder / "a").symlink_to(outside)
    for top in ("alias", "real"):
        with pytest.raises(FileRejected):
            Workspace(folder, GUEST, Limits()).save_picture(b"\x89PNG", ".png", tmp_path / top / "work" / "a" / "c")
    assert untouched(outside)


def test_a_picture_leaves_work_dir_where_its_folder_does(workspace: Workspace, folder: Path, outside: Path) -> None:
    (folder / "planted").symlink_to(outside)
    path = Path(workspace.save_picture(b"\x89PNG", ".png", folder / "planted" / ".." / ".." / "figures"))
    assert (folder.parent / "figures" / path.name).read_bytes() == b"\x89PNG"
    assert untouched(outside)


def test_a_link_through_work_dir_and_out_again_is_refused(
    workspace: Workspace, folder: Path, outside: Path, tmp_path: Path
) -> None:
    (folder / "planted").symlink_to(outside)
    (tmp_path / "way").symlink_to("work/planted/../../figures")
    with pytest.raises(FileRejected):
        workspace.save_picture(b"\x89PNG", ".png", tmp_path / "way" / "c")
    assert untouched(outside)


def test_a_picture_may_go_above_work_dir(workspace: Workspace, folder: Path) -> None:
    path = Path(workspace.save_picture(b"\x89PNG", ".png", folder.parent))
    assert path.parent == folder.parent
    assert path.read_bytes() == b"\x89PNG"


@pytest.mark.parametrize("swapped", ["a", "a/b", "a/b/c"])
def test_a_folder_that_is_swapped_for_a_link_once_it_is_made_leads_nowhere(
    workspace: Workspace, folder: Path, outside: Path, swapped: str
) -> None:
    def swap(frame: object, event: str, called: object) -> None:
        place = folder / swapped
        if event == "c_return" and called is os.mkdir and place.is_dir() and not place.is_symlink():
            place.rename(folder / "moved")
            place.symlink_to(outside)

    sys.setprofile(swap)
    try:
        with pytest.raises(FileRejected, match="a picture could not be saved"):
            workspace.save_picture(b"\x89PNG", ".png", folder / "a" / "b" / "c")
    finally:
        sys.setprofile(None)
    assert (folder / swapped).is_symlink()
    assert untouched(outside)
