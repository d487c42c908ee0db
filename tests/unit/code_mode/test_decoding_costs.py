"""The cost of decoding what a hostile guest sends: messages that stand for much are refused before they cost it."""

from __future__ import annotations

import gc
import io
import json
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agent_tools.code_mode.attachments import rich_value
from agent_tools.code_mode.frame import MAX_CATEGORIES, MAX_LEVEL_TEXTS, PIECE_ROWS
from agent_tools.code_mode.frame_schema import MAX_FIELDS, MAX_NAME_CHARS, MAX_SCHEMA_BYTES
from agent_tools.guest.wire.budget import (
    CHECK_PARTS,
    FREE_BYTES,
    MADE_PER_BYTE,
    MAX_MADE_BYTES,
    MAX_PARTS,
    MAX_SAME_HASH,
    Budget,
    GivenUp,
    TooCostly,
    Unbounded,
)
from agent_tools.guest.wire.calls import (
    LONG_HEAD,
    MAX_MARKS,
    MAX_NUMBER_CHARS,
    MESSAGE,
    SHORT_HEAD,
    CallReader,
    pack,
)
from agent_tools.guest.wire.framing import HEADER, FrameError, pack_parts
from agent_tools.guest.wire.values import MAX_DECIMAL_EXPONENT, NotEncodable, decode, encode

pytestmark = pytest.mark.cost

ONE_HASH = 2**61 - 1  # its multiples all have the hash 0
COLLIDING = 10_000  # a set of so many of them takes a second, and twice as many four


@contextmanager
def spending(seconds: float) -> Iterator[None]:
    """At most so much CPU time of this thread."""
    began = time.thread_time()
    yield
    assert time.thread_time() - began < seconds


def spends(seconds: float, work: Callable[[], object]) -> None:
    """Do something in at most so much CPU time; what took longer is done again before it is believed."""
    for is_last in (False, False, True):
        began = time.thread_time()
        work()
        spent = time.thread_time() - began
        if spent < seconds:
            return
        assert not is_last, f"{spent:.2f} s"


@contextmanager
def taking(mebibytes: float) -> Iterator[None]:
    """At most so much memory at the same time."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < mebibytes * 2**20


@contextmanager
def costing(seconds: float, mebibytes: float) -> Iterator[None]:
    """At most so much CPU time and memory; counting the memory takes most of the time."""
    with spending(4 * seconds), taking(mebibytes):
        yield


def refused(data: Any, attachments: list[bytes] | None = None, budget: Budget | None = None) -> None:
    attachments = attachments or []
    size = len(json.dumps(data)) + sum(map(len, attachments))

    def refuse() -> None:
        with pytest.raises(ValueError):
            decode(data, list(attachments), rich_value, budget or Budget(size))

    spends(0.8, refuse)
    with taking(40):
        refuse()


# -- parts, hashes and attachments ------------------------------------------------------------------------------------


OF_ONE_HASH: dict[str, Callable[[int], Any]] = {
    "int": lambda n: n * ONE_HASH,
    "long int": lambda n: {"$": "int", "v": hex(n * ONE_HASH)},
    "decimal": lambda n: {"$": "decimal", "v": str(n * ONE_HASH)},
    "uuid": lambda n: {"$": "uuid", "v": f"{n * ONE_HASH:032x}"},
    "tuple": lambda n: {"$": "tuple", "v": [n * ONE_HASH]},
    "frozenset": lambda n: {"$": "frozenset", "v": [n * ONE_HASH]},
    "nested": lambda n: {"$": "tuple", "v": [{"$": "frozenset", "v": [n * ONE_HASH, "x"]}]},
    "mixed": lambda n: n * ONE_HASH if n % 2 else {"$": "decimal", "v": str(n * ONE_HASH)},
}
ALSO_IN = [("frozenset", "int"), ("dict", "int"), ("dict", "nested"), ("dict", "mixed")]  # read alike


@pytest.mark.parametrize(("kind", "element"), [*(("set", element) for element in OF_ONE_HASH), *ALSO_IN])
def test_elements_and_keys_of_one_hash_are_refused_before_they_meet(kind: str, element: str) -> None:
    elements = [OF_ONE_HASH[element](number) for number in range(1, COLLIDING)]
    refused({"$": kind, "v": [[each, 0] for each in elements] if kind == "dict" else elements})


def test_sets_of_powers_of_two_still_cross() -> None:
    for value in ({2**n for n in range(4096)}, {2.0**n for n in range(-1074, 1024)}, {-1, -2}, set(range(50_000))):
        data, attachments = encode(value)
        assert decode(data, attachments) == value


def test_as_many_elements_of_one_hash_as_may_be_still_cross() -> None:
    value = {n * ONE_HASH: n for n in range(MAX_SAME_HASH)}
    assert decode(*encode(value)) == value
    assert decode({"$": "set", "v": [1, 2**61] * 1000}, []) == {1, 2**61}
    value[MAX_SAME_HASH * ONE_HASH] = 0
    with pytest.raises(TooCostly, match=f"more than {MAX_SAME_HASH} elements or keys of one hash"):
        decode(*encode(value))


@pytest.mark.parametrize("kind", ["text", "bytes", "array"])
def test_an_attachment_is_named_once(kind: str) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(2**20, "u1"))
    content = buffer.getvalue() if kind == "array" else b"x" * 2**20
    with pytest.raises(TooCostly, match="named twice"):
        decode([{"$": kind, "n": 0}] * 2, [content], rich_value)
    refused([{"$": kind, "n": 0}] * 1000, [content])


def test_a_value_has_a_bounded_number_of_parts() -> None:
    assert len(decode([0] * MAX_PARTS, [])) == MAX_PARTS
    with pytest.raises(TooCostly, match=f"more than {MAX_PARTS:,} parts"):
        decode([0] * (MAX_PARTS + 1), [])
    refused({"$": "tuple", "v": "x" * 2**23})


def test_a_budget_is_a_multiple_of_the_message_up_to_a_bound() -> None:
    assert Budget(0).limit == FREE_BYTES
    assert Budget(1000).limit == FREE_BYTES + 1000 * MADE_PER_BYTE
    assert Budget(2**24).limit == MAX_MADE_BYTES
    budget = Budget(0)
    budget.make(FREE_BYTES)
    with pytest.raises(TooCostly, match="would take more than 8,388,608 bytes"):
        budget.make(1)


def test_a_trusted_message_has_no_bound() -> None:
    assert len(decode([0] * (MAX_PARTS + 1), [], None, Unbounded())) == MAX_PARTS + 1


def test_decoding_ends_when_nobody_waits_any_more() -> None:
    looks = iter([False, False])
    made = []
    frames = [{"$": "frame", "n": each} for each in range(10_000)]
    with pytest.raises(GivenUp):
        decode(frames, [b""] * 10_000, lambda *_: made.append(1), Budget(2**20, lambda: next(looks, True)))
    assert len(made) < 2 * CHECK_PARTS


# -- scalars ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1E4000000", "1E401", "-1E-401", "0E-1000000", "1E999999999999999999"])
def test_a_decimal_of_a_huge_exponent_is_refused_on_both_sides(text: str) -> None:
    with pytest.raises(ValueError, match=r"exponent|malformed"):
        decode({"$": "decimal", "v": text}, [])
    if abs(Decimal(text).adjusted()) < 10**7:
        with pytest.raises(NotEncodable, match=f"a Decimal of an exponent over {MAX_DECIMAL_EXPONENT}"):
            encode(Decimal(text))


@pytest.mark.parametrize("text", ["1E400", "-1E-400", "0E-7", "1" * 400, "NaN", "-Infinity", "0." + "1" * 900])
def test_a_decimal_of_a_usual_exponent_crosses(text: str) -> None:
    assert str(decode(*encode(Decimal(text)))) == str(Decimal(text))


@pytest.mark.parametrize("kind", ["datetime", "date", "time", "uuid", "float", "int", "decimal"])
def test_a_scalar_is_no_longer_than_its_kind_can_be(kind: str) -> None:
    refused([{"$": kind, "v": "2" * 2**20}])


# -- heads ------------------------------------------------------------------------------------------------------------


def framed(head: bytes) -> bytes:
    return pack_parts(MESSAGE, [head])


def head_of(message: bytes) -> bytes:
    """Return the head of a message without attachments."""
    return message[HEADER.size + 8 :]


@pytest.mark.parametrize(
    "value",
    [
        b"[" + b"9" * 4000 + b"]",
        b"[" + b",".join([b"9" * 4300] * 3000) + b"]",
        b"[1." + b"7" * 2**22 + b"]",
        b"[" + b",".join([b"[]"] * MAX_MARKS) + b"]",
        b"[" + b",".join([b'{"a":0}'] * MAX_MARKS) + b"]",
    ],
    ids=["digits", "many digits", "float", "lists", "dicts"],
)
def test_a_head_that_costs_more_than_its_bytes_is_refused(value: bytes) -> None:
    message = framed(b'{"pad":"' + b" " * LONG_HEAD + b'","v":' + value + b"}")
    with costing(1.0, 60), pytest.raises(FrameError):
        list(CallReader().feed(message))


def test_numbers_of_usual_length_are_read_in_a_long_head() -> None:
    numbers = [0.1, -1.7976931348623157e308, 2**53, float("inf"), 5e-324] * 10_000
    ((head, _, _),) = CallReader().feed(pack({"v": numbers}, []))
    assert head["v"] == numbers
    assert max(len(repr(each)) for each in numbers) <= MAX_NUMBER_CHARS


def test_a_long_head_is_read_without_the_collector_which_goes_on_afterwards() -> None:
    passes = []

    def note(phase: str, info: dict[str, int]) -> None:
        passes.append(phase)

    message = framed(b'{"v":[' + b",".join([b"[]"] * 45_000) + b"]}")
    broken = framed(b"[" * (LONG_HEAD + 1))
    gc.callbacks.append(note)
    try:
        reader = CallReader()
        list(reader.feed(message))
        assert len(passes) < 20
        with pytest.raises(FrameError):
            list(reader.feed(broken))
    finally:
        gc.callbacks.remove(note)
    assert gc.isenabled()


def test_texts_full_of_commas_are_no_parts() -> None:
    texts = ["a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,t,u,v,w,x,y,z,[[[{{{" * 3] * 10_000
    data, attachments = encode(texts)
    ((head, parts, _),) = CallReader().feed(pack({"v": data}, attachments))
    assert decode(head["v"], parts) == texts


def call(number: int = 7, name: str = "f", pad: int = 0, **more: Any) -> bytes:
    head = {"op": "call", "id": number, "name": name, "args": ["x" * pad], "kwargs": {}, **more}
    return framed(json.dumps(head).encode())


def test_a_call_that_is_not_wanted_is_not_read() -> None:
    asked = []

    def screen(number: int, name: str, size: int) -> bool:
        asked.append((number, name, size))
        return number != 7

    reader = CallReader(screen=screen)
    junk = head_of(call()).replace(b'"kwargs"', b"not even JSON") + b"[" * 300_000
    with costing(0.5, 10):
        found = list(reader.feed(framed(junk) + call(8)))
    assert [head["id"] for head, _, _ in found] == [8]
    assert asked[0] == (7, "f", len(framed(junk)) - HEADER.size)


def test_a_call_is_what_it_began_as() -> None:
    forged = head_of(call(pad=SHORT_HEAD)).replace(b'"kwargs"', b'"name": "g", "kwargs"')
    with pytest.raises(FrameError, match="another than it began as"):
        list(CallReader(screen=lambda *_: True).feed(framed(forged)))


def test_a_long_call_begins_with_its_name() -> None:
    head = json.dumps({"args": ["x" * LONG_HEAD], "op": "call", "id": 1, "name": "f", "kwargs": {}})
    with pytest.raises(FrameError, match="does not begin with what it is"):
        list(CallReader(screen=lambda *_: True).feed(framed(head.encode())))
    assert list(CallReader(screen=lambda *_: False).feed(pack({"op": "cancel", "id": 1}, [])))


# -- frames -----------------------------------------------------------------------------------------------------------


def arrow(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def string_views(size: int, views: int) -> pa.Table:
    packed = b"".join(struct.pack("<i4sii", size - each % 1000, b"xxxx", 0, 0) for each in range(views))
    buffers = [None, pa.py_buffer(packed), pa.py_buffer(b"x" * size)]
    return pa.table({"a": pa.Array.from_buffers(pa.string_view(), views, buffers)})


def list_views(inner: int, lists: int) -> pa.Table:
    child = pa.array([0] * inner, pa.int8())
    views = pa.ListViewArray.from_arrays(
        pa.array([0] * lists, pa.int32()), pa.array([inner] * lists, pa.int32()), child
    )
    return pa.table({"a": views})


def dictionary(values: pa.Array, count: int = 10) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), values)


LONG = "x" * 100_000
BOMBS: dict[str, Callable[[], pa.Table]] = {
    "nulls": lambda: pa.table({"a": pa.nulls(60_000_000)}),
    "structs of nulls": lambda: pa.table({"a": pa.StructArray.from_arrays([pa.nulls(10**6)], ["a"])}),
    "structs of nothing": lambda: pa.table({"a": pa.array([{}] * 10**5, pa.struct([]))}),
    "bytes of no width": lambda: pa.table({"a": pa.array([b""] * 10**5, pa.binary(0))}),
    "lists of no width": lambda: pa.table({"a": pa.array([[]] * 10**5, pa.list_(pa.int8(), 0))}),
    "empty lists": lambda: pa.table({"a": pa.array([[]] * 10**6, pa.list_(pa.int8()))}),
    "booleans": lambda: pa.table({"a": pa.array([True, None] * 10**6)}),
    "string views": lambda: string_views(2**20, 500),
    "list views": lambda: list_views(2**20, 500),
    "run ends": lambda: pa.table({"a": pa.RunEndEncodedArray.from_arrays([2**31 - 1], [1.5])}),
    "union": lambda: pa.table({"a": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])}),
    "dictionaries in structs": lambda: pa.table(
        {"a": pa.StructArray.from_arrays([dictionary(pa.array([LONG]), 1000)], ["a"])}
    ),
    "dictionaries in lists": lambda: pa.table(
        {"a": pa.ListArray.from_arrays(list(range(1001)), dictionary(pa.array([LONG]), 1000))}
    ),
    "categories of one hash": lambda: pa.table(
        {"a": dictionary(pa.array([Decimal(each * ONE_HASH) for each in range(9000)], pa.decimal128(38)))}
    ),
    "many categories": lambda: pa.table({"a": dictionary(pa.array(np.arange(MAX_CATEGORIES + 1)))}),
    "many columns": lambda: pa.table([pa.nulls(0)] * (MAX_FIELDS + 1), names=list(map(str, range(MAX_FIELDS + 1)))),
    "long names": lambda: pa.table({"x" * (MAX_NAME_CHARS + 1): [1]}),
    "a long schema": lambda: pa.table({"a": [1]}).replace_schema_metadata({"x": "y" * MAX_SCHEMA_BYTES}),
    "many batches": lambda: pa.concat_tables([pa.table({str(each): [1] for each in range(40)})] * 2600),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_frame_that_stands_for_more_than_its_bytes_is_refused(bomb: str) -> None:
    content = arrow(BOMBS[bomb]())
    with costing(1.0, 40), pytest.raises(ValueError, match="frame that cannot be read"):
        rich_value("frame", content)


def noted(**notes: Any) -> bytes:
    table = pa.Table.from_pandas(pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}, index=["u", "v"]))
    known = json.loads(table.schema.metadata[b"pandas"])
    return arrow(table.replace_schema_metadata({"pandas": json.dumps({**known, **notes})}))


COLUMN = {"name": "a", "field_name": "a", "pandas_type": "int64", "numpy_type": "int64", "metadata": None}


@pytest.mark.parametrize(
    "notes",
    [
        {"columns": [COLUMN] * 1000},
        {"columns": [COLUMN] * 3},
        {"columns": [{**COLUMN, "numpy_type": "f8," * 10_000}]},
        {"columns": [{**COLUMN, "name": "x" * 10_000}]},
        {"columns": [0]},
        {"index_columns": ["a"] * 2},
        {"index_columns": [{"kind": "range", "name": None, "start": 0, "stop": 2, "step": 1}] * 1000},
        {"column_indexes": [{"name": None, "pandas_type": "unicode", "numpy_type": "S100000000"}]},
        {"column_indexes": [{"name": None, "pandas_type": "U100000000", "numpy_type": "object"}]},
        {"column_indexes": [{"name": None}] * 1000},
        {"x": [[]] * (MAX_PARTS // 2 + 1)},
    ],
    ids=lambda notes: f"{next(iter(notes))}",
)
def test_notes_of_pandas_that_are_not_those_of_a_frame_are_refused(notes: dict[str, Any]) -> None:
    with costing(1.0, 60), pytest.raises(ValueError, match="frame that cannot be read"):
        rich_value("frame", noted(**notes))
    assert list(rich_value("frame", noted())["b"]) == ["x", "y"]


def test_an_index_of_many_texts_at_several_levels_is_refused() -> None:
    rows = MAX_LEVEL_TEXTS // 2
    for more, is_taken in ((0, True), (1, False)):
        texts = [f"{each}" for each in range(rows + more)]
        frame = pd.DataFrame({"n": 1}, index=pd.MultiIndex.from_arrays([texts, texts]))
        content = arrow(pa.Table.from_pandas(frame))
        if is_taken:
            pd.testing.assert_frame_equal(rich_value("frame", content), frame)
        else:
            with pytest.raises(ValueError, match="texts in an index of several levels; send it as columns"):
                rich_value("frame", content)


def test_long_columns_of_objects_come_back_as_they_are_in_one_piece() -> None:
    rows = 2 * PIECE_ROWS + 1
    days = pd.Series(pd.date_range("2020-01-01", periods=rows)).dt.date
    frame = pd.DataFrame(
        {
            "n": np.arange(rows),
            "day": days,
            "money": [Decimal(each) / 4 for each in range(rows)],
            "list": [np.array([each]) for each in range(rows)],
            "raw": [b"x"] * rows,
            "text": ["t"] * rows,
            "none": [None] * rows,
            "half": [True, None] * PIECE_ROWS + [True],
        },
        index=pd.Index(np.arange(rows) * 2, name="key"),
    )
    table = pa.Table.from_pandas(frame)
    found, whole = rich_value("frame", arrow(table)), table.to_pandas()
    pd.testing.assert_frame_equal(found, whole)
    assert list(map(type, found.iloc[0])) == list(map(type, whole.iloc[0]))


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame(),
        pd.DataFrame({"a": []}),
        pd.DataFrame({"a": [None] * 100_000}),
        pd.DataFrame({"p": pd.period_range("2020-01", periods=3, freq="M"), "i": pd.interval_range(0, 3)}),
        pd.DataFrame({"s": pd.Series([1, None], dtype="Int64"), "b": pd.Series([True, None], dtype="boolean")}),
        pd.DataFrame({"c": pd.Categorical(["a", None, "a"]), "z": pd.date_range("2020", periods=3, tz="Asia/Tokyo")}),
        pd.DataFrame(np.zeros((2, 2)), columns=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)])),
        pd.DataFrame({"a": [1, 2]}, index=pd.MultiIndex.from_tuples([("x", 1), ("y", 2)], names=["k", "l"])),
        pd.DataFrame({"a": [[1], [2, 3]], "d": [{"x": 1}, {"x": 2}], "t": pd.to_timedelta([1, 2], "s")}),
        pd.DataFrame({1: [1], 2: [2]}),
        pd.DataFrame({"a": [1]}, index=pd.to_datetime(["2020-01-01"])),
        pd.DataFrame(np.zeros((3, 300)), columns=[f"c{each}" for each in range(300)]),
        pd.DataFrame(np.random.default_rng(0).random((200_000, 8))),
    ],
    ids=range(13),
)
def test_frames_of_every_kind_still_cross(frame: pd.DataFrame) -> None:
    ((tag, content),) = [("frame", part) for part in encode(frame)[1]]
    budget = Budget(len(content))
    whole = pa.ipc.open_stream(content).read_all().to_pandas()
    pd.testing.assert_frame_equal(rich_value(tag, content, budget), whole)


def test_a_frame_is_given_up_when_nobody_waits() -> None:
    content = arrow(pa.table({"a": pa.array([b"x"] * 100_000)}))
    looks = iter([False] * 5)
    with pytest.raises(GivenUp):
        rich_value("frame", content, Budget(len(content), lambda: next(looks, True)))


# -- arrays -----------------------------------------------------------------------------------------------------------


def npy(descr: Any, shape: Any, body: bytes = b"", version: int = 1) -> bytes:
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(header)) + header + body


@pytest.mark.parametrize(
    "content",
    [
        npy("|V0", (2**60,)),
        npy("|S0", (10**9,)),
        npy("<f8", (2**31,)),
        npy("<f8", (-1, -8), bytes(64)),
        npy("<f8", (2**63, 2), bytes(64)),
        npy("<f8", (7,), bytes(64)),
        npy("<f8", (9,), bytes(64)),
        npy("|S2000000000", (0,)),
        npy([("a", "<f8", (10**8,))], (0,)),
        npy([("a", "|O")], (1,), bytes(8)),
        npy("<f8", (1,), bytes(8), version=3),
        npy("<f8", (" " * 20_000,)),
    ],
    ids=[
        "void",
        "text",
        "huge",
        "negative",
        "overflow",
        "too few",
        "too many",
        "item",
        "subarray",
        "object",
        "v3",
        "long",
    ],
)
def test_an_array_is_held_against_its_bytes(content: bytes) -> None:
    with costing(0.5, 5), pytest.raises(ValueError, match="array that cannot be read"):
        rich_value("array", content)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 5)),
        np.array(3.5),
        np.arange(24).reshape(2, 3, 4).T,
        np.array(["a", "bc"]),
        np.array([], dtype="U1000"),
        np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array(["2024-01-01"], dtype="M8[D]"),
        np.zeros(2**21),
        np.array([True]),
        np.array([1 + 2j]),
    ],
    ids=range(10),
)
def test_arrays_of_every_kind_still_cross(array: np.ndarray) -> None:
    (content,) = encode(array)[1]
    back = rich_value("array", content, Budget(len(content)))
    np.testing.assert_array_equal(back, array)
    assert (back.dtype, back.flags.writeable) == (array.dtype, True)


# -- anything ---------------------------------------------------------------------------------------------------------

SMALL = st.none() | st.integers(0, 300) | st.integers(1, 50).map(lambda n: n * ONE_HASH) | st.text(max_size=9)
ATTACHED = st.fixed_dictionaries(
    {"$": st.sampled_from(["bytes", "text", "frame", "array", "png"]), "n": st.integers(0, 3)}
)
TAGGED = st.sampled_from(["set", "frozenset", "tuple", "dict", "int", "decimal", "float", "timedelta", "complex"])
MESSAGES = st.recursive(
    SMALL | ATTACHED,
    lambda inner: (
        st.tuples(inner, st.integers(1, 3000)).map(lambda many: [many[0]] * many[1])
        | st.lists(inner, max_size=4)
        | st.tuples(inner, inner).map(lambda pair: [list(pair)] * 50)
        | st.fixed_dictionaries({"$": TAGGED, "v": inner})
    ),
    max_leaves=8,
)
CONTENTS = [b"x" * 2**16, arrow(pa.table({"a": pa.nulls(5000)})), npy("<f8", (8192,), bytes(65536)), b""]


def has_more_parts(data: Any, most: int) -> bool:
    waiting, seen = [data], 0
    while waiting and seen <= most:
        each = waiting.pop()
        inner = each if isinstance(each, list) else list(each.values()) if isinstance(each, dict) else []
        seen += 1 + len(inner)
        waiting += inner[: most + 1 - len(waiting)]
    return seen > most


@settings(max_examples=40)
@given(MESSAGES, st.permutations(CONTENTS))
def test_any_message_costs_a_small_multiple_of_its_bytes(data: Any, attachments: list[bytes]) -> None:
    assume(not has_more_parts(data, 300_000))  # lists of lists of one list: what is small here is terabytes of text
    text = json.dumps(data)
    size = len(text) + sum(map(len, attachments))
    with costing(0.5 + 20e-6 * size, 24 + 60 * size / 2**20), suppress(ValueError, TypeError, ArithmeticError):
        decode(json.loads(text), list(attachments), rich_value, Budget(size))
