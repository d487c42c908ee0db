"""Traps that the code leaves in work_dir for the host."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_tools.results.execution import StagedFile
from agent_tools.tools import CodeInterpreter

pytestmark = pytest.mark.docker


@pytest.fixture
def tool(fresh_tool: CodeInterpreter) -> CodeInterpreter:
    return fresh_tool


PLANTED = {
    "a socket": "import socket\nsocket.socket(socket.AF_UNIX).bind('data.csv')",
    "a link to a host file": "import os\nos.symlink('/etc/passwd', 'data.csv')",
    "a link to nowhere": "import os\nos.symlink('/nowhere/at/all', 'data.csv')",
    "a link to itself": "import os\nos.symlink('data.csv', 'data.csv')",
    "a folder": "import os\nos.mkdir('data.csv')",
    "a file nobody may read": "import os\nopen('data.csv', 'w').close()\nos.chmod('data.csv', 0)",
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED.keys())
def test_what_is_planted_under_a_files_name_is_not_touched(tool: CodeInterpreter, tmp_path: Path, plant: str) -> None:
    source = tmp_path / "data.csv"
    source.write_text("mine")
    assert tool.run(plant).ok
    before = os.lstat(Path(tool.work_dir) / "data.csv")
    execution = tool.run("print(open('data-1.csv').read())", files=[str(source)])
    assert execution.files == (StagedFile(str(source), "data-1.csv", is_renamed=True),)
    assert execution.stdout == "mine\n"
    after = os.lstat(Path(tool.work_dir) / "data.csv")
    assert (before.st_ino, before.st_mtime_ns, before.st_mode) == (after.st_ino, after.st_mtime_ns, after.st_mode)


@pytest.mark.parametrize(
    "plant",
    [
        "import os\nos.symlink('/etc', 'sub')",
        "import os\nos.makedirs('real')\nos.symlink('/etc/passwd', 'real/passwd')\nos.symlink('real', 'sub')",
        "import os, socket\nos.mkdir('sub')\nsocket.socket(socket.AF_UNIX).bind('sub/passwd')",
    ],
    ids=["a linked folder", "a linked file in a linked folder", "a socket"],
)
def test_no_way_through_work_dir_leads_to_a_host_file(tool: CodeInterpreter, plant: str) -> None:
    assert tool.run(plant).ok
    (staged,) = tool.stage([f"{tool.work_dir}/sub/passwd"])
    assert staged.name is None


def test_the_files_of_the_caller_are_the_codes_to_change_and_stay_the_callers(
    new_tool: Callable[..., CodeInterpreter], work_dir: Path
) -> None:
    folder = work_dir / "project"
    (folder / "sub").mkdir(parents=True)
    for name in ("data.csv", "sub/more.csv"):
        (folder / name).write_text("a\n")
    (folder / ".env").touch(0o600)
    code = (
        "import os\nopen('data.csv', 'a').write('1')\nopen('sub/more.csv', 'a').write('2')\n"
        "os.rename('sub/more.csv', 'sub/moved.csv')\nopen('sub/new.csv', 'w').write('3')"
    )
    for _ in range(2):  # a second sandbox has what the first one wrote
        tool = new_tool(work_dir=str(folder))
        assert tool.run(code).error is None
        assert os.stat(folder / "data.csv").st_uid == folder.stat().st_uid == os.getuid()
        (folder / "sub" / "moved.csv").rename(folder / "sub" / "more.csv")
        tool.close()
    assert (folder / "data.csv").read_text() == "a\n11"
    if os.getuid() == 0:
        assert "PermissionError" in new_tool(work_dir=str(folder)).call("open('.env').read()")


def test_hard_links_reach_no_file_of_the_host_or_the_image(tool: CodeInterpreter) -> None:
    code = "import os\ntry: os.link('/etc/passwd', 'mine')\nexcept OSError as exc: print(exc.strerror)"
    assert tool.run(code).stdout == "Invalid cross-device link\n"


def test_a_locked_folder_survives_close_and_reuse(
    new_tool: Callable[..., CodeInterpreter],
) -> None:
    tool = new_tool()
    assert tool.run("import os\nos.makedirs('locked/inner')\nos.chmod('locked', 0)").ok
    tool.close()
    execution = new_tool().run("import os\nos.chmod('locked', 0o700)\nprint(os.listdir('locked'))")
    assert execution.stdout == "['inner']\n"


def test_files_have_no_more_rights_than_the_code_may_give(tool: CodeInterpreter) -> None:
    assert tool.run("import os\nopen('f', 'w').close()\nos.chmod('f', 0o777)").ok
    assert stat.S_IMODE(os.stat(Path(tool.work_dir) / "f").st_mode) == 0o777
    assert os.stat(Path(tool.work_dir) / "f").st_uid != 0


def test_folders_nested_without_end_are_listed_up_to_a_limit_and_can_be_removed(
    new_tool: Callable[..., CodeInterpreter], work_dir: Path
) -> None:
    folder = os.open(work_dir, os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("d", dir_fd=folder)
        os.chmod("d", 0o777, dir_fd=folder)
        folder, outer = os.open("d", os.O_RDONLY, dir_fd=folder), folder
        os.close(outer)
    os.close(folder)
    tool = new_tool()
    execution = tool.run("open('d/new', 'w').close()")
    assert [change.name for change in execution.changes] == ["d/new"]
    assert tool.run("!rm -rf d && echo gone").stdout.strip() == "gone"


NAMES = ["\x1b[31mred", "line\nbreak", "\u202eright to left", "-rf", "\udcff not UTF-8", "`fence`", "![x](x)"]


def test_names_of_every_kind_are_listed_without_harm(tool: CodeInterpreter) -> None:
    execution = tool.run({"code": f"for name in {NAMES!r}: open(name, 'w').close()"})
    assert len(execution.changes) == len(NAMES)
    for change in execution.changes:
        change.name.encode()  # none that could not be sent on
