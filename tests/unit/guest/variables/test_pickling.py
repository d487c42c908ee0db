"""Variables as records: one memo for all, and failures that cost no others."""

from __future__ import annotations

import functools
import io
import sys
import threading
import types
from contextlib import nullcontext
from typing import Any

import pytest

from agent_tools.guest.variables.record_buffer import SessionPickler, VariableTooLarge, packed
from agent_tools.guest.variables.record_source import MAX_HEAD, SessionUnpickler, records
from agent_tools.guest.variables.saving import described, variables_of

MOST = 10_000_000
NO_LIMIT = nullcontext()


@pytest.fixture
def namespace(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The variables of a session, as the kernel's main module has them."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main.__dict__


def run(namespace: dict[str, Any], code: str) -> list[str]:
    before = set(namespace)
    exec(compile(code, "<cell>", "exec", dont_inherit=True), namespace)
    return [name for name in namespace if name not in before and name != "__builtins__"]


def saved(namespace: dict[str, Any], names: list[str], most: int = MOST) -> tuple[bytes, dict[str, str]]:
    pickler, pieces, missing = SessionPickler(namespace), [], {}
    for name in names:
        try:
            pieces += pickler.record(name, namespace[name], most, NO_LIMIT)
        except Exception as exc:
            missing[name] = described(exc)
    return b"".join(map(bytes, pieces)) + packed({"missing": list(missing.items())}), missing


def loaded(data: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    stream, unpickler = io.BytesIO(data), SessionUnpickler()
    values: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for head, pickled, buffers in records(lambda size: bytearray(stream.read(size))):
        if "missing" not in head:
            try:
                values[head["name"]] = unpickler.value(pickled, buffers, NO_LIMIT, is_fresh=head["fresh"])
            except Exception as exc:
                missing[head["name"]] = described(exc)
    return values, missing


def test_what_two_variables_share_is_one_object_again(namespace: dict[str, Any]) -> None:
    names = run(namespace, "a = [1]; b = {'a': a}; a.append(b); c = a; part = ['x']; d = [part]; e = (part,)")
    values, missing = loaded(saved(namespace, names)[0])
    assert not missing
    assert values["a"][1] is values["b"]
    assert values["b"]["a"] is values["a"] is values["c"]
    assert values["d"][0] is values["e"][0] is values["part"]


def test_one_that_failed_leaves_no_trace_in_what_comes_after(namespace: dict[str, Any]) -> None:
    namespace["lock"] = threading.Lock()
    names = run(namespace, "first = [1]; half = [first, ['new'], lock]; new = half[1]; last = [first, new]")
    data, missing = saved(namespace, names)
    assert list(missing) == ["half"]
    values, failed = loaded(data)
    assert not failed
    assert values["last"][0] is values["first"]
    assert values["last"][1] is values["new"]


def test_one_that_is_too_large_is_refused_and_a_smaller_one_taken(namespace: dict[str, Any]) -> None:
    names = run(namespace, "large = bytes(100_000); long = ['x' * 10] * 5 + [list(range(50_000))]; small = 1")
    pickler = SessionPickler(namespace)
    for name in ("large", "long"):
        with pytest.raises(VariableTooLarge):
            pickler.record(name, namespace[name], 10_000, NO_LIMIT)
    assert sum(map(len, pickler.record("small", 1, 10_000, NO_LIMIT))) < 500
    assert names == ["large", "long", "small"]


def test_a_function_has_the_session_s_variables_as_its_globals(namespace: dict[str, Any]) -> None:
    names = run(namespace, "import threading\nlock = threading.Lock(); x = 1\ndef f(): return x\ndef g(): return lock")
    data, missing = saved(namespace, names)
    assert list(missing) == ["lock"]
    values, _ = loaded(data)
    assert values["f"].__globals__ is namespace
    namespace["x"] = 2
    assert values["f"]() == 2


def test_cached_functions_of_cells_come_back_and_those_of_modules_stay_theirs(namespace: dict[str, Any]) -> None:
    code = "import functools, fnmatch\n@functools.lru_cache(7, typed=True)\ndef f(n): return n\nf(1)\n"
    names = run(namespace, code + "theirs = fnmatch._compile_pattern")
    values, missing = loaded(saved(namespace, names)[0])
    assert not missing
    assert values["f"].cache_parameters() == {"maxsize": 7, "typed": True}
    assert values["f"](3) == 3
    assert values["f"].cache_info().currsize == 1
    assert values["theirs"] is namespace["theirs"]


def test_arrays_are_not_copied_into_the_pickle(namespace: dict[str, Any]) -> None:
    names = run(namespace, "import numpy as np\narray = np.arange(100_000.); other = array; part = array[::2]")
    pieces = SessionPickler(namespace).record("array", namespace["array"], MOST, NO_LIMIT)
    assert [len(memoryview(piece).cast("B")) for piece in pieces if isinstance(piece, memoryview)] == [800_000]
    values, _ = loaded(saved(namespace, names)[0])
    assert values["array"] is values["other"]
    assert (values["part"] == namespace["part"]).all()
    assert values["array"].flags.writeable


FAILS = """
class Fails:
    def __reduce__(self): return make, (), self.__dict__
    def __setstate__(self, state): raise OSError('no database')
def make(): return Fails()
"""


def test_one_that_cannot_be_loaded_costs_only_those_that_hold_a_part_of_it(namespace: dict[str, Any]) -> None:
    code = "shared = ['s']; fails = Fails(); fails.own = ['own', 'text']; fails.shared = shared\n"
    names = run(namespace, FAILS + code + "import numpy as np; own = fails.own; text = 'text'; more = [shared, 'text']")
    values, missing = loaded(saved(namespace, names)[0])
    assert set(missing) == {"fails", "own"}
    assert "no database" in missing["fails"]
    assert "shares a part" in missing["own"]
    assert values["more"][0] is values["shared"]
    assert values["text"] == "text"


CLOSURES = """
def counter():
    count, later = 0, None
    def up():
        nonlocal count
        count += 1
        return count
    def read(): return count
    def down(n): return even(n - 1) if n else 'odd'
    def even(n): return down(n - 1) if n else 'even'
    def empty(): return gone
    gone = 1
    del gone
    return up, read, down, empty
up, read, down, empty = counter()
up()
pair = dict(zip(('up', 'read'), counter()))
class Base:
    def name(self): return 'base'
class Special(Base):
    def name(self): return super().name() + '!'
"""


def test_functions_that_share_a_variable_share_it_again(namespace: dict[str, Any]) -> None:
    names = run(namespace, CLOSURES)
    for _ in range(2):
        values, missing = loaded(saved(namespace, names)[0])
        assert not missing
        assert [values["up"](), values["read"](), values["pair"]["up"](), values["pair"]["read"]()] == [2, 2, 1, 1]
        assert [values["down"](4), values["down"](5)] == ["odd", "even"]
        assert values["Special"]().name() == "base!"
        with pytest.raises(NameError):
            values["empty"]()


PLUMBING = """
def first(): return x
class Base:
    def value(self): return x
fails = Fails(); fails.own = first
x = 3
def second(): return [first, x]
class Second:
    def value(self): return x
"""


def test_one_that_cannot_be_loaded_costs_no_functions_or_classes_that_only_share_their_making(
    namespace: dict[str, Any],
) -> None:
    names = run(namespace, FAILS + PLUMBING)
    del namespace["first"]
    values, missing = loaded(saved(namespace, ["fails", *names[-3:]])[0])
    assert list(missing) == ["fails"]
    namespace |= values
    assert namespace["Second"]().value() == 3
    assert namespace["second"].__globals__ is namespace


def test_the_first_that_cannot_be_pickled_leaves_no_trace(namespace: dict[str, Any]) -> None:
    names = run(
        namespace,
        "import threading\nfails = threading.Lock()\ndef f(): return x\nx = 1\nf.fails = fails\ng = lambda: x",
    )
    data, missing = saved(namespace, ["f", "fails", "g", "x"])
    assert list(missing) == ["f", "fails"]
    values, failed = loaded(data)
    assert not failed
    assert values["g"]() == values["x"] == 1
    assert names


TYPES = """
import typing
N = typing.NewType('N', int)
P = typing.ParamSpec('P')
T = typing.TypeVarTuple('T')
def f(n: N, *args: P.args): return n
def of(*args: *T): return args
n = N(3)
"""


def test_names_for_types_are_saved_with_what_speaks_of_them(namespace: dict[str, Any]) -> None:
    names = run(namespace, TYPES)
    for _ in range(2):  # and what was loaded is saved again
        values, missing = loaded(saved(namespace, names)[0])
        assert not missing
        assert values["f"].__annotations__["n"] is values["N"] is not namespace["N"]
        assert (values["N"].__supertype__, values["N"](4), values["f"](5)) == (int, 4, 5)
        assert (values["P"].__name__, values["T"].__name__) == ("P", "T")
        namespace |= values


def test_after_a_failure_what_can_be_imported_is_there_for_others(namespace: dict[str, Any]) -> None:
    code = "from collections import Counter\nfrom fractions import Fraction\nfails = Fails()\n"
    code += "fails.a = [Fraction(1, 3), Counter('a')]\n"
    names = run(namespace, FAILS + code + "fine = [Fraction(2, 3), Counter('bb')]")
    values, missing = loaded(saved(namespace, names)[0])
    assert set(missing) == {"fails"}
    assert values["fine"] == namespace["fine"]


def test_damaged_records_are_refused(namespace: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="too long"):
        list(records(lambda size: bytearray(b"\xff" * size)))
    assert MAX_HEAD < 0xFFFFFFFF
    data, _ = saved(namespace, run(namespace, "a = 'text'; b = [1]"))
    values, missing = loaded(data.replace(b"text", b"\xff\xff\xff\xff"))
    assert list(missing) == ["a"]
    assert values == {"b": [1]}


def test_only_what_the_session_has_made_is_a_variable() -> None:
    mine = functools.partial(print)
    namespace = {
        "open": open,
        "x": 1,
        "_": 5,
        "_1": 5,
        "_i": "",
        "_ii": "",
        "_i3": "",
        "In": [],
        "_oh": {},
        "__name__": "m",
        "__annotations__": {},
        "__version__": "1",
    }
    namespace |= {"_private": 2, "mine": mine, "stub": print, "changed": 3, "__doc__": None, "exit": 1}
    found = variables_of(namespace, {"open": open, "stub": print, "changed": print})
    assert found == [("x", 1), ("__version__", "1"), ("_private", 2), ("mine", mine), ("changed", 3)]


def test_what_was_raised_is_told_in_a_line_whatever_it_is() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise SystemExit

    assert described(ValueError("a\n  b")) == "ValueError: a b"
    assert described(Odd()) == "Odd"
    assert len(described(ValueError("x" * 10_000))) == 300
