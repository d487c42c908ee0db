"""Variables that outlive their sandbox: saved in one, loaded in another, on every engine and both transports."""

from __future__ import annotations

import threading
import time

import pytest

from agent_tools.results.variables import SavedState
from tests.contract.states import HURRIED, TIGHT, New, missing, moved

pytestmark = pytest.mark.docker


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


def test_an_archive_that_grows_too_large_is_refused(new_sandbox: New) -> None:
    sandbox = new_sandbox(limits=TIGHT)
    sandbox.run_code("x = bytes(1_000_000)")
    with pytest.raises(OSError, match="larger than 100,000 bytes"):
        sandbox.save(variables=True)
    assert sandbox.run_code("len(x)").value == 1_000_000
