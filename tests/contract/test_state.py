"""Variables that outlive their sandbox: saved in one, loaded in another, on every engine and both transports."""

from __future__ import annotations

import functools
import io
import json
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent_tools.errors import InvalidParams, KernelError
from agent_tools.results.variables import SavedState
from agent_tools.runtime.runtime import Runtime
from agent_tools.sandbox import Sandbox

pytestmark = pytest.mark.docker
HURRIED = {"variables_timeout": 2.0, "max_variables_bytes": 2_000_000, "sync_timeout": 10.0}
TIGHT = {"max_variables": 10, "max_archive_bytes": 100_000, "variables_timeout": 8.0}

New = Callable[..., Sandbox]


@pytest.fixture(scope="module")
def used_sandboxes(runtime: Runtime, transport: str) -> Iterator[Callable[[str, int], Sandbox]]:
    """Sandboxes by their options, as JSON, and by number: tests have them one after another."""
    with ExitStack() as stack:

        @functools.cache
        def find(options: str, _number: int) -> Sandbox:
            cfg = {"transport": transport, **json.loads(options)}
            return stack.enter_context(Sandbox(cfg, runtime=runtime))

        yield find


@pytest.fixture
def new_sandbox(used_sandboxes: Callable[[str, int], Sandbox]) -> New:
    """Hands over sandboxes with a fresh kernel and an empty folder."""
    handed_over: Counter[str] = Counter()

    def make(**options: object) -> Sandbox:
        key = json.dumps(options, sort_keys=True)
        handed_over[key] += 1
        sandbox = used_sandboxes(key, handed_over[key])
        if sandbox.is_alive:
            sandbox.restart()
            sandbox.run_command("find . -mindepth 1 -delete")
        return sandbox

    return make


def moved(new: New, code: str, **options: object) -> tuple[Sandbox, SavedState]:
    """Run code in one sandbox, and bring its state into another."""
    first, second = new(**options), new(**options)
    execution = first.run_code(code)
    assert execution.ok, str(execution)
    saved = first.save(variables=True)
    first.restart()
    report = second.load(saved)
    assert not report.problem
    return second, saved


def missing(saved: SavedState) -> dict[str, str]:
    return {each.name: each.reason for each in saved.variables.missing}


def test_a_session_goes_on_in_another_sandbox(new_sandbox: New) -> None:
    sandbox, saved = moved(
        new_sandbox,
        """
import functools, enum, dataclasses
import collections as c
from math import sqrt as root
x = 10
def plus(n): return n + x
@functools.cache
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
class Colour(enum.Enum):
    RED = 1
@dataclasses.dataclass
class Point:
    x: int
    def far(self): return plus(self.x)
class Special(Point):
    def far(self): return super().far() * 2
add = lambda a, b=x: a + b
points = [Point(1), Special(2)]
_hidden = 'kept'
""",
    )
    assert saved.variables.is_complete, str(saved)
    result = sandbox.run_code(
        "c.Counter('aab')['a'], root(9), plus(1), fib(30), Colour.RED is Colour(1), [p.far() for p in points], "
        "type(points[0]) is Point, add(1), _hidden"
    )
    assert result.value == (2, 3.0, 11, 832040, True, [11, 24], True, 11, "kept"), str(result)
    assert sandbox.run_code("x = 20\nplus(1), points[0].far()").value == (21, 21)


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


def test_arrays_and_frames_come_back_exactly(new_sandbox: New) -> None:
    sandbox, saved = moved(
        new_sandbox,
        """
import numpy as np, pandas as pd, datetime as dt
wide = np.arange(200_000, dtype='<i4').reshape(400, 500)
fortran = np.asfortranarray(np.random.default_rng(1).random((300, 100)))
part = wide[::3, ::7]
nothing = np.empty((0, 3)); scalar = np.float32(1.5)
records = np.array([(1, 'a')], dtype=[('n', 'i8'), ('s', 'U3')])
fixed = np.zeros(5000); fixed.flags.writeable = False
times = np.array(['2020-01-01', 'NaT'], dtype='M8[ns]')
frame = pd.DataFrame({'n': [1.5, None] * 5000, 's': ['a', 'ü'] * 5000})
frame['d'] = pd.date_range('2024-01-01', periods=10_000, tz='Europe/Berlin')
frame['c'] = frame.s.astype('category'); frame.attrs['source'] = 'test'
frame = frame.set_index(['c', 'd'])
before = {name: globals()[name].tobytes() for name in ('wide', 'fortran', 'part', 'nothing', 'records', 'times')}
copy = frame.reset_index().to_dict('list')
""",
    )
    assert saved.variables.is_complete, str(saved)
    check = """
assert all(globals()[name].tobytes() == data for name, data in before.items())
assert wide.dtype == np.dtype('<i4') and wide.shape == (400, 500) and nothing.shape == (0, 3)
assert fortran.flags.f_contiguous and type(scalar) is np.float32
assert records.dtype.names == ('n', 's') and not fixed.flags.writeable and wide.flags.writeable
wide[0, 0] = -1
again = frame.reset_index()
pd.testing.assert_frame_equal(again, pd.DataFrame(copy).astype(again.dtypes.to_dict())[again.columns])
frame.attrs
"""
    execution = sandbox.run_code(check)
    assert execution.value == {"source": "test"}, str(execution)


def test_each_variable_that_cannot_be_saved_is_named_and_the_others_are_saved_in_time(new_sandbox: New) -> None:
    sandbox, saved = moved(
        new_sandbox,
        """
import os, threading
first = 1
lock = threading.Lock()
def reduces(body):
    space = {'os': os}
    exec('class Kind:\\n  def __reduce__(self):\\n' + '\\n'.join('    ' + line for line in body.splitlines()), space)
    return space['Kind']()
loops = reduces('import time; time.sleep(600)')
deaf = reduces('import time\\nwhile True:\\n  try: time.sleep(600)\\n  except BaseException: pass')
leaves = reduces('os._exit(7)')
killed = reduces('os.kill(os.getpid(), 9)')
raises = reduces('1/0')
generator = (n for n in range(3))
huge = bytes(3_000_000)
deep = []
for _ in range(100_000): deep = [deep]
file = open(os.devnull)
def uses_the_lock(): return lock.locked(), last
last = [first]
""",
        limits=HURRIED,
    )
    reasons = missing(saved)
    assert sorted(reasons) == sorted(
        ["lock", "loops", "deaf", "leaves", "killed", "raises", "generator", "huge", "deep", "file"]
    ), str(saved)
    assert "variables_timeout" in reasons["loops"]
    assert "variables_timeout" in reasons["deaf"]
    assert "exit code 7" in reasons["leaves"]
    assert "SIGKILL" in reasons["killed"]
    assert "ZeroDivisionError" in reasons["raises"]
    assert "max_variables_bytes" in reasons["huge"]
    assert "lock" in reasons["lock"]
    assert sandbox.run_code("first, last").value == (1, [1])
    assert "NameError: name 'lock'" in str(sandbox.run_code("uses_the_lock()"))


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


def test_code_runs_on_while_variables_are_saved(new_sandbox: New) -> None:
    sandbox = new_sandbox(limits=TIGHT)
    sandbox.run_code(
        "import time\nclass Slow:\n  def __reduce__(self):\n    time.sleep(2); return (int, (7,))\nx = 1; slow = Slow()"
    )
    saved: list[SavedState] = []
    saving = threading.Thread(target=lambda: saved.append(sandbox.save(variables=True)))
    saving.start()
    rounds = 0
    while saving.is_alive():
        assert sandbox.run_code("x += 1").ok
        rounds += 1
        time.sleep(0.1)
    assert rounds > 2  # the saving takes two seconds, and a call on a remote engine a good part of one
    assert sandbox.load(saved[0]).is_complete
    assert sandbox.run_code("x, slow").value[1] == 7


def test_a_kernel_that_ends_while_it_loads_is_told_of(new_sandbox: New) -> None:
    first, second = new_sandbox(), new_sandbox()
    first.run_code("import os\nclass Ends:\n  def __reduce__(self): return os._exit, (3,)\nx = 1; ends = Ends()")
    report = second.load(first.save(variables=True))
    assert "exit" in report.problem or "ended" in report.problem, report
    assert not report.is_complete
    execution = second.run_code("'x' in globals()")
    assert execution.value is False


def test_more_variables_than_may_be_are_counted(new_sandbox: New) -> None:
    sandbox = new_sandbox(limits=TIGHT)
    sandbox.run_code("for n in range(30): globals()[f'v{n}'] = n")
    report = sandbox.save(variables=True).variables
    assert len(report.kept) == 9
    assert [(each.name, "max_variables" in each.reason) for each in report.missing] == [("(22 more)", True)]


def test_an_archive_that_grows_too_large_is_refused(new_sandbox: New) -> None:
    sandbox = new_sandbox(limits=TIGHT)
    sandbox.run_code("x = bytes(1_000_000)")
    with pytest.raises(OSError, match="larger than 100,000 bytes"):
        sandbox.save(variables=True)
    assert sandbox.run_code("len(x)").value == 1_000_000


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
