"""Values across the wall: what comes back as it was, what is refused, and that no encoding of a stranger does harm."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import io
import json
import math
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.code_mode.attachments import Attachment, rich_value
from agent_tools.guest.wire.values import LONG_TEXT, MAX_DECIMAL_EXPONENT, MAX_DEPTH, NotEncodable, decode, encode


def there_and_back(value: Any, rich: Any = None) -> Any:
    data, attachments = encode(value)
    return decode(json.loads(json.dumps(data)), attachments, rich)


class Colour(enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class Text(str):
    __slots__ = ()


@dataclasses.dataclass
class Point:
    x: int
    when: dt.date


class Model(pydantic.BaseModel):
    at: dt.datetime


Pair = collections.namedtuple("Pair", "a b")


class Day(dt.date):
    pass


class Price(decimal.Decimal):
    pass


class Key(uuid.UUID):
    pass


NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 5, dt.timezone(dt.timedelta(hours=2)))

SAME = [
    *(None, True, False, 0, -1, 2**53, 2**53 + 1, -(2**4000), 1.5, float("inf"), float("-inf"), -0.0),
    *("", "text", "\ud800 lone", "x" * LONG_TEXT, "\ud800" * LONG_TEXT, b"", b"\x00\xff"),
    *([], [1, [2, [3]]], {}, {"a": {"b": [1]}}, {"$": "int", "v": "0x1"}, {1: "a", (2, 3): [4], None: 5}),
    *((), (1, (2,)), set(), {1, 2}, frozenset({"a"}), [(1,), {2}]),
    *(NOON, NOON.replace(tzinfo=None), NOON.date(), NOON.timetz(), dt.timedelta(days=-3, microseconds=7)),
    *(decimal.Decimal("1.10"), decimal.Decimal("-Infinity"), uuid.UUID(int=7), 1 + 2j, complex("inf")),
]


@pytest.mark.parametrize("value", SAME, ids=lambda value: repr(value)[:30])
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)


def test_nan_stays_nan_alone_and_inside() -> None:
    assert math.isnan(there_and_back(float("nan")))
    assert math.isnan(there_and_back({"a": [float("nan")]})["a"][0])
    assert math.isnan(there_and_back(complex(1, float("nan"))).imag)
    assert str(there_and_back(decimal.Decimal("sNaN"))) == "sNaN"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Colour.RED, "red"),
        (Number.ONE, 1),
        (Text("t"), "t"),
        (Point(1, NOON.date()), {"x": 1, "when": NOON.date()}),
        (Model(at=NOON), {"at": NOON}),
        (Pair(1, 2), (1, 2)),
        (collections.OrderedDict(a=1), {"a": 1}),
        (bytearray(b"a"), b"a"),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.datetime64("2024-01-02T03:04:05.123456789"), dt.datetime(2024, 1, 2, 3, 4, 5, 123456)),
        (np.timedelta64(90, "s"), dt.timedelta(seconds=90)),
        (pd.Timestamp("2024-01-02 03:04:05.123456789"), dt.datetime(2024, 1, 2, 3, 4, 5, 123456)),
        (pd.Timedelta("-1 days 03:04:05.123456789"), dt.timedelta(-1, 3 * 3600 + 4 * 60 + 5, 123456)),
        (Day(2024, 2, 29), NOON.date()),
        (Price("1.50"), decimal.Decimal("1.50")),
        (Key(int=7), uuid.UUID(int=7)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_kind_of_a_plain_type_crosses_as_the_plain_one(value: Any, plain: Any) -> None:
    back = there_and_back(value)
    assert back == plain
    assert type(back) is type(plain)


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "value is of type object, which cannot cross"),
        ({"items": [1, {"when": json}]}, r"value\.items\[1\]\.when is of type module"),
        ({1: print}, r"value\[1\]\[1\] is of type builtin_function_or_method"),
        (2**5000, "an integer of more than 4096 bits"),
        ([2**5000], r"value\[0\] is an integer"),
        (decimal.Decimal("1" * 1001), "a Decimal of more than 1000 characters"),
        (nested(MAX_DEPTH + 1), f"nested deeper than {MAX_DEPTH} levels"),
        (np.array([object()]), "an array of Python objects"),
        (pd.DataFrame({"a": [object()]}), "a DataFrame that Arrow cannot hold"),
        (pd.NaT, "is of type NaTType"),
        (np.longdouble(1), "is of type"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_cross_is_refused_with_its_place(value: Any, message: str) -> None:
    with pytest.raises(NotEncodable, match=message):
        encode(value)


def test_a_cycle_is_refused() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(NotEncodable, match="nested deeper"):
        encode(cycle)


def test_the_deepest_that_is_allowed_comes_back() -> None:
    assert there_and_back(nested(MAX_DEPTH)) == nested(MAX_DEPTH)


def test_frames_and_arrays_come_back_whole() -> None:
    frame = pd.DataFrame(
        {"n": [1, 2], "f": [0.5, float("nan")], "t": ["a", None], "d": pd.to_datetime(["2024-01-01", None], utc=True)},
        index=pd.Index(["x", "y"], name="key"),
    )
    pd.testing.assert_frame_equal(there_and_back({"a": [frame]}, rich_value)["a"][0], frame)
    array = np.arange(6, dtype=">i2").reshape(2, 3).T
    back = there_and_back(array, rich_value)
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype


def test_without_a_reader_a_frame_is_its_bytes() -> None:
    assert there_and_back(np.arange(3)).startswith(b"\x93NUMPY")
    assert rich_value("png", b"\x89PNG") == b"\x89PNG"
    assert Attachment("frame", b"").kind == "frame"


@pytest.mark.parametrize("kind", ["frame", "array"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00\xff\xff", b"\xff" * 100, b"\x80\x04N."])
def test_a_frame_or_an_array_that_is_none_is_refused(kind: str, content: bytes) -> None:
    with pytest.raises(ValueError, match=f"{kind} that cannot be read"):
        rich_value(kind, content)


def test_an_array_of_pickles_is_not_unpickled() -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="cannot be read"):
        rich_value("array", buffer.getvalue())


def arrow(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda: pa.table({"a": [0] * 100_000}), {"compression": "zstd"}, "compressed frames and"),
        (lambda: pa.table({"a": pa.array(["x"] * 9).dictionary_encode()}), {"compression": "lz4"}, "compressed frames"),
        (lambda: pa.table({"a": pa.nulls(10**9)}), {}, "it would take more than 8,"),
    ],
    ids=["zstd", "dictionary", "nulls"],
)
def test_a_frame_that_would_grow_is_refused_before_it_does(
    make: Callable[[], pa.Table], options: Any, message: str
) -> None:
    table = make()
    with pytest.raises(ValueError, match=message):
        rich_value("frame", arrow(table, **options))


def test_dictionaries_and_many_batches_are_read() -> None:
    frame = pd.DataFrame({"c": pd.Categorical(["a", "b", "a"]), "n": [1, 2, 3]})
    pd.testing.assert_frame_equal(rich_value("frame", encode(frame)[1][0]), frame)
    table = pa.concat_tables([pa.table({"n": [1]}), pa.table({"n": [2]})])
    assert list(rich_value("frame", arrow(table))["n"]) == [1, 2]


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**4000), 2**4000)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.datetimes(timezones=st.none() | st.just(dt.UTC))
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals(allow_nan=False).filter(lambda value: abs(value.adjusted()) <= MAX_DECIMAL_EXPONENT)
    | st.uuids()
    | st.complex_numbers(allow_nan=False)
)
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text()) | st.just("$")
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner) | st.tuples(inner, inner) | st.frozensets(KEYS),
    max_leaves=20,
)


@given(VALUES)
def test_any_value_comes_back_as_it_was(value: Any) -> None:
    assert there_and_back(value) == value


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["$", "v", "n", "a"]), inner, max_size=4)
        | st.fixed_dictionaries(
            {
                "$": st.sampled_from(
                    ["int", "uuid", "timedelta", "complex", "dict", "set", "datetime", "bytes", "float"]
                )
            },
            optional={"v": inner, "n": inner},
        )
    ),
    max_leaves=15,
)


@given(JSON)
def test_any_json_is_a_value_or_a_value_error(data: Any) -> None:
    with contextlib.suppress(ValueError, TypeError):
        decode(data, [b"one"])
