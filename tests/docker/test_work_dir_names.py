"""`/mnt/data` and `/home/user` are the work_dir, as folders: programs and code see its files there."""

from __future__ import annotations

import pytest

from agent_tools import Sandbox
from agent_tools.guest.wire.words import WORK_DIR_NAMES

LISTED = {
    "find {0} -name '*.csv'": "{0}/up.csv\n",
    "ls {0}": "up.csv\n",
    "ls -ld {0} | cut -c1": "d\n",
    "tar cf /tmp/x.tar -C / .{0} 2>/dev/null; tar tf /tmp/x.tar | grep csv": ".{0}/up.csv\n",
    "cp -r {0} /tmp/copy; echo changed > /tmp/copy/up.csv; cat {0}/up.csv; rm -r /tmp/copy": "a,b\n1,2\n",
    "cd {0} && pwd -P && git init -q . 2>/dev/null; rm -rf .git": "{0}\n",
    "du -a {0} | grep -c csv": "1\n",
}
MOVES = """
import os, pathlib, shutil
for move in (os.rename, os.replace, shutil.move, lambda a, b: pathlib.Path(a).rename(b)):
    open("plot.png", "w").write("p")
    move("plot.png", "{0}/plot.png")
    move("{0}/plot.png", "{0}/b.png")
    move("b.png", "{0}/c.png")
    assert os.listdir() == os.listdir("{0}") and "c.png" in os.listdir("/workspace") and "b.png" not in os.listdir()
    os.remove("c.png")
try:
    os.rename("up.csv", "/tmp/up.csv")
except OSError as exc:
    print(exc.errno)
"""
FOLDER = """
import os, tarfile
from pathlib import Path
found = Path("{0}").resolve()
with tarfile.open("/tmp/y.tar", "w") as archive:
    archive.add("{0}", "files")
print(found, len(list(found.parent.rglob("up.csv"))), tarfile.open("/tmp/y.tar").getnames(), os.path.islink("{0}"))
"""


@pytest.mark.parametrize("name", WORK_DIR_NAMES)
def test_each_name_of_work_dir_is_a_folder_for_programs_and_code(sandbox: Sandbox, name: str) -> None:
    sandbox.write_file("up.csv", "a,b\n1,2\n")
    for line, expected in LISTED.items():
        command, text = line.format(name), expected.format(name)
        assert sandbox.run_command(command).stdout.decode() == text, command
        assert sandbox.run_code(f"!{command}").stdout == text, command
    assert sandbox.run_code(FOLDER.format(name)).stdout == f"{name} 1 ['files', 'files/up.csv'] False\n"
    assert sandbox.run_code(MOVES.format(name)).stdout == "18\n", "EXDEV, as between any two folders"
    assert sandbox.read_file(f"{name}/up.csv") == b"a,b\n1,2\n"


@pytest.mark.parametrize("name", WORK_DIR_NAMES)
def test_a_file_written_under_another_name_is_listed_once(sandbox: Sandbox, name: str) -> None:
    execution = sandbox.run_code(f"open('{name}/new.txt', 'w').write('x' * 5000)")
    assert [(change.name, change.size) for change in execution.changes] == [("new.txt", 5000)]
    assert [entry.path for entry in sandbox.list_files(".")] == ["new.txt"]


def test_no_folder_beside_the_names_can_be_written(sandbox: Sandbox) -> None:
    said = sandbox.run_command(
        "touch /mnt/x; touch /home/x; rmdir /mnt/data; ln -s /tmp /home/y; ls /mnt /home"
    ).stdout.decode()
    assert said == "/home:\nsandbox\nuser\n\n/mnt:\ndata\n"


def test_the_service_of_files_moves_from_name_to_name(sandbox: Sandbox) -> None:
    sandbox.write_file("/mnt/data/a", "x")
    sandbox.move("a", "/home/user/b")
    sandbox.move("/home/user/b", "/mnt/data/c")
    assert [entry.path for entry in sandbox.list_files(".")] == ["c"]
