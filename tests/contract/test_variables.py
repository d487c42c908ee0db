"""What is saved and loaded of variables and files, on each engine over one transport: no transport changes it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from agent_tools.errors import InvalidParams, KernelError
from tests.contract.states import HURRIED, TIGHT, New, moved
from tests.contract.test_kernel import pair as pair

pytestmark = pytest.mark.docker


def test_names_of_one_object_and_what_they_share_stay_one(new_sandbox: New) -> None:
    sandbox, _ = moved(
        new_sandbox,
        "a = [1]; b = a; ring = {}; other = [ring]; ring['other'] = other\n"
        "class Node: pass\n"
        "node = Node(); nodes = [node, Node()]; edges = [(nodes[0], nodes[1])]",
    )
    assert (
        sandbox.run_code(
            "a is b, ring['other'] is other, other[0] is ring, nodes[0] is node, edges[0][1] is nodes[1]"
        ).value
        == (True,) * 5
    )


def test_one_that_cannot_be_loaded_costs_only_what_holds_a_part_of_it(new_sandbox: New) -> None:
    first, second = new_sandbox(), new_sandbox()
    first.run_code(
        "class Base:\n  def __setstate__(self, state): raise OSError('no database here')\n"
        "part = [1]\nbase = Base(); base.part = part; base.own = ['own']\nown = base.own; holds = [base]\n"
        "import numpy as np; array = np.ones(10); text = 'own'; x = 5\ndef f(): return x, part"
    )
    saved = first.save(variables=True)
    assert saved.variables.is_complete
    report = second.load(saved)
    assert {each.name for each in report.missing} == {"base", "own", "holds"}, str(report)
    assert "no database here" in str(report)
    assert second.run_code("float(array.sum()), text, f()").value == (10.0, "own", (5, [1]))


def test_a_module_in_work_dir_is_there_before_what_refers_to_it(new_sandbox: New) -> None:
    sandbox, saved = moved(
        new_sandbox,
        "open('shapes.py', 'w').write('class Square: side = 3')\nfrom shapes import Square\nsquare = Square(); print()",
    )
    assert saved.variables.is_complete
    assert sandbox.run_code("square.side, type(square).__module__").value == (3, "shapes")


LINKS = """
import os
os.makedirs('sub/deep'); open('a', 'w').write('kept'); work = os.getcwd()
links = {'inside': 'a', 'absolute': f'{work}/a', 'sub/up': '../a', 'sub/deep/absolute': f'{work}/a', 'loop': '.'}
out = {'hosts': '/etc/hosts', 'above': '..', 'sub/above': '../../a', 'beside': f'{work}-not/a', 'top': '/'}
for name, target in {**links, **out, 'dangling': 'nowhere'}.items(): os.symlink(target, name)
"""


@pytest.mark.parametrize("variables", [False, True])
def test_links_that_lead_out_of_the_folder_cost_only_themselves(new_sandbox: New, variables: bool) -> None:
    first, second = new_sandbox(), new_sandbox()
    assert first.run_code(LINKS).ok
    saved = first.save(variables=variables)
    assert second.run_code("import os; os.symlink('/etc', 'sub'); os.symlink('/etc/hosts', 'a')").ok
    for sandbox in (second, first):  # and where all of it is there already
        sandbox.load(saved)
        names = "['inside', 'absolute', 'sub/up', 'sub/deep/absolute', 'loop/a']"
        assert sandbox.run_code(f"[open(name).read() for name in {names}]").value == ["kept"] * 5
    assert second.run_code("import os; sorted(os.listdir())").value == sorted(
        ["a", "absolute", "dangling", "inside", "loop", "sub"]
    )


def test_links_of_an_archive_that_lead_out_are_left_out_and_members_refused(new_sandbox: New) -> None:
    sandbox = new_sandbox()
    for name, target in (("link", "/etc/hosts"), ("link", "../x"), ("../out", "")):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            member = tarfile.TarInfo(name)
            if target:
                member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
            tar.addfile(tarfile.TarInfo("after"))
        if target:
            sandbox.load(file.getvalue())
            assert sandbox.run_code("import os; os.listdir()").value == ["after"]
        else:
            with pytest.raises(InvalidParams, match="members stay in the folder"):
                sandbox.load(file.getvalue())


def test_saving_leaves_no_trace_and_ends_no_kernel(new_sandbox: New) -> None:
    sandbox = new_sandbox()
    sandbox.run_code("import os, gc; 41 + 1")
    before = sandbox.run_code("pid = os.getpid(); sorted(globals()), pid").value
    saved = sandbox.save(variables=True)
    after = sandbox.run_code("sorted(globals()), os.getpid()").value
    assert set(after[0]) - set(before[0]) <= {"pid", "_2", "_i3", "_3", "_i4", "_i2"}
    assert before[1] == after[1]
    assert sandbox.run_code("_2, len(In), _i2").value[1] == 5
    assert saved.variables.kept == ("os", "gc", "pid")
    assert sandbox.list_files() == []


def test_a_tar_of_variables_puts_nothing_into_the_folder_and_is_a_tar(new_sandbox: New) -> None:
    sandbox, saved = moved(new_sandbox, "x = 1; open('a', 'w').write('a'); print()")
    assert [info.name for info in sandbox.list_files()] == ["a"]
    with tarfile.open(fileobj=io.BytesIO(saved.tar)) as tar:
        assert tar.getnames() == [".agent_tools.variables", ".", "./a", ".agent_tools.variables.000000"]
    other = sandbox.load(saved, variables=False)
    assert not other.kept


def test_more_variables_than_may_be_are_counted(new_sandbox: New) -> None:
    sandbox = new_sandbox(limits=TIGHT)
    sandbox.run_code("for n in range(30): globals()[f'v{n}'] = n")
    report = sandbox.save(variables=True).variables
    assert len(report.kept) == 9
    assert [(each.name, "max_variables" in each.reason) for each in report.missing] == [("(22 more)", True)]


def test_code_that_took_the_way_away_is_told_of(new_sandbox: New) -> None:
    sandbox = new_sandbox()
    sandbox.run_code("import sandbox; del sandbox.save_variables; x = 1")
    with pytest.raises(KernelError, match="AttributeError"):
        sandbox.save(variables=True)
    assert sandbox.run_code("x").value == 1


@pytest.mark.parametrize("damage", ["cut", "garbage", "names"])
def test_a_hostile_archive_can_do_no_more_than_code(new_sandbox: New, damage: str, tmp_path: Path) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(".agent_tools.variables"))
        data = {"cut": b"\0\0\0\x50{", "garbage": b"\xff" * 5000, "names": b'\0\0\0\x0d{"missing":1}'}[damage]
        member = tarfile.TarInfo(".agent_tools.variables.000000")
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    sandbox = new_sandbox(limits=HURRIED)
    sandbox.run_code("x = 1")
    report = sandbox.load(file.getvalue())
    assert not report.is_complete, report
    assert sandbox.run_code("1 + 1").value == 2
