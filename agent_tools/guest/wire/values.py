"""Python values as JSON and attachments, for host and guest. Standard library only; never pickle.

    None, bool, str, int, float, list, dict with str keys     themselves
    {"$": tag, "v": ...}                                      everything else, by the table below
    {"$": kind, "n": index}                                   an attachment: "bytes", "text" (a long str, UTF-8),
                                                              "frame" (Arrow IPC), "array" (npy), "png"

A dict that has a key "$", or keys that are not str, comes as {"$": "dict", "v": [[key, value], ...]}. Each attachment
is named once. What a value may cost who decodes it is in budget.py.
"""

import dataclasses
import datetime as dt
import decimal
import enum
import io
import math
import sys
import uuid
from collections.abc import Callable
from typing import Any

from .budget import Budget, dict_of, set_of

MAX_DEPTH = 128  # of lists and dicts in each other
MAX_INT_BITS = 4096
MAX_DECIMAL_CHARS = 1000
MAX_DECIMAL_EXPONENT = 400  # of the first digit, either way: as far as floats go, and an int of it is soon made
MAX_TIME_CHARS = 64  # of a date or a time
LONG_TEXT = 16 * 1024  # characters from which a str is attached: quicker than JSON, and its commas are no parts
MANY_MARKS = 8  # commas, brackets and braces from which one is attached that is shorter
_SHORT_TEXT = 64
_SAFE_INT = 2**53
Encoded = tuple[Any, list[bytes]]
Rich = Callable[[str, bytes, Budget], Any]


class NotEncodable(ValueError):
    """A value, or a part of it, cannot be sent. `path` names the part."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path} {what}")
        self.path = path


def encode(value: Any, path: str = "value") -> Encoded:
    """Return a value in a form for `json.dumps`, and its attachments.

    Raises:
        NotEncodable: a part of it is of a type that cannot be sent, or it is nested too deep.
    """
    attachments: list[bytes] = []
    return _encode(value, path, attachments, 0), attachments


def decode(data: Any, attachments: list[bytes], rich: Rich | None = None, budget: Budget | None = None) -> Any:
    """Decode a value. `rich` decodes frames, arrays and PNGs; without it they are returned as their attachments.

    `budget` limits the cost; the default is for a message that has only the attachments.

    Raises:
        ValueError: it is not such an encoding, or costs more than it may (`TooCostly`).
        TypeError: an element of a set or a key cannot be one.
    """
    if data.__class__ not in _CONTAINERS:
        return data
    budget = budget or Budget(sum(map(len, attachments)))
    return _Decoder(attachments, rich or _as_attached, budget).value(data, 0)


def _encode(value: Any, path: str, attachments: list[bytes], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise NotEncodable(path, f"is nested deeper than {MAX_DEPTH} levels")
    if _is_itself(value):
        return value
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        items = [
            item if _is_itself(item) else _encode(item, f"{path}[{index}]", attachments, depth + 1)
            for index, item in enumerate(value)
        ]
        return items if kind is list else {"$": kind.__name__, "v": items}
    if kind is dict:
        return _encode_dict(value, path, attachments, depth)
    if kind in _SCALARS:
        return _encode_scalar(value, kind, path)
    return _encode_other(value, path, attachments, depth)


def _is_itself(value: Any) -> bool:
    """Return whether a value is its own encoding."""
    kind = type(value)
    if kind is str:
        return not _is_attached(value)
    if kind is int:
        return bool(-_SAFE_INT <= value <= _SAFE_INT)
    return value is None or kind is bool or (kind is float and math.isfinite(value))


def _is_attached(text: str) -> bool:
    size = len(text)
    return size >= LONG_TEXT or (size > _SHORT_TEXT and sum(map(text.count, ",[{")) > MANY_MARKS)


def _encode_scalar(value: Any, kind: type, path: str) -> Any:
    if kind is int and value.bit_length() > MAX_INT_BITS:
        raise NotEncodable(path, f"is an integer of more than {MAX_INT_BITS} bits")
    tag, plain = _SCALARS[kind]
    data = plain(value)
    if kind is decimal.Decimal and len(data) > MAX_DECIMAL_CHARS:
        raise NotEncodable(path, f"is a Decimal of more than {MAX_DECIMAL_CHARS} characters")
    if kind is decimal.Decimal and abs(value.adjusted()) > MAX_DECIMAL_EXPONENT:
        raise NotEncodable(path, f"is a Decimal of an exponent over {MAX_DECIMAL_EXPONENT}")
    return {"$": tag, "v": data}


def _encode_dict(value: dict[Any, Any], path: str, attachments: list[bytes], depth: int) -> Any:
    if all(type(key) is str for key in value) and "$" not in value:
        return {key: _encode(item, f"{path}.{key}", attachments, depth + 1) for key, item in value.items()}
    pairs = [[key, item] for key, item in value.items()]
    return {"$": "dict", "v": [_encode(pair, f"{path}[{pair[0]!r:.40}]", attachments, depth + 1) for pair in pairs]}


def _encode_other(value: Any, path: str, attachments: list[bytes], depth: int) -> Any:
    """Encode bytes, values of data libraries, and subclasses of plain types (enums, named tuples, str subclasses)."""
    attached = _attachment(value, path)
    if attached is not None:
        tag, content = attached
        attachments.append(content)
        return {"$": tag, "n": len(attachments) - 1}
    if type(value).__module__ == "numpy" and hasattr(value, "item"):  # a numpy scalar
        plain = _of_numpy(value)
        if type(plain).__module__ != "numpy":
            return _encode(plain, path, attachments, depth)
    if isinstance(value, enum.Enum):
        return _encode(value.value, path, attachments, depth)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _encode(fields, path, attachments, depth)
    if callable(getattr(value, "model_dump", None)):  # a pydantic model
        return _encode(value.model_dump(by_alias=True), path, attachments, depth)
    for base, plain in _BASES:
        if isinstance(value, base) and type(value) is not base:
            try:
                inner = plain(value)
            except ValueError:  # pandas.NaT is a datetime without a date
                break
            return _encode(inner, path, attachments, depth)
    raise NotEncodable(path, f"is of type {type(value).__qualname__}, which cannot cross")


def _of_numpy(value: Any) -> Any:
    """Return the Python value of a numpy scalar; numpy's own conversion of times gives nanoseconds as an int."""
    if value.dtype.kind in "mM":
        value = value.astype(f"{value.dtype.kind}8[us]")
    return value.item()


_BASES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, str),
    (int, int),
    (float, float),
    (tuple, tuple),
    (list, list),
    (dict, dict),
    (dt.datetime, lambda value: dt.datetime.fromisoformat(value.isoformat(timespec="microseconds"))),
    (dt.date, lambda value: dt.date(value.year, value.month, value.day)),
    (dt.timedelta, lambda value: dt.timedelta(value.days, value.seconds, value.microseconds)),
    (decimal.Decimal, decimal.Decimal),
    (uuid.UUID, lambda value: uuid.UUID(int=value.int)),
)


def _attachment(value: Any, path: str) -> tuple[str, bytes] | None:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes", bytes(value)
    if type(value) is str:
        return "text", value.encode("utf-8", "surrogatepass")
    pandas, numpy, pillow = (sys.modules.get(name) for name in ("pandas", "numpy", "PIL.Image"))
    if pandas and isinstance(value, pandas.DataFrame):
        return "frame", _frame_bytes(value, path)
    if numpy and isinstance(value, numpy.ndarray):
        if value.dtype.hasobject:
            raise NotEncodable(path, "is an array of Python objects")
        buffer = io.BytesIO()
        numpy.save(buffer, value, allow_pickle=False)
        return "array", buffer.getvalue()
    if pillow and isinstance(value, pillow.Image):
        buffer = io.BytesIO()
        value.save(buffer, "PNG")
        return "png", buffer.getvalue()
    return None


def _frame_bytes(frame: Any, path: str) -> bytes:
    try:
        import pyarrow  # only frames need it
    except ImportError:
        raise NotEncodable(path, "is a DataFrame, for which pyarrow is needed on this side") from None
    try:
        table = pyarrow.Table.from_pandas(frame)
    except pyarrow.ArrowException as exc:
        raise NotEncodable(path, f"is a DataFrame that Arrow cannot hold ({str(exc)[:200]})") from None
    sink = io.BytesIO()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _as_attached(kind: str, content: bytes, budget: Budget) -> bytes:
    return content


_CONTAINERS = {list, dict}
_TAGGED_LISTS = ("dict", "tuple", "set", "frozenset")


class _Decoder:
    """Makes the value of one message."""

    def __init__(self, attachments: list[bytes], rich: Rich, budget: Budget) -> None:
        self._attachments, self._rich, self._budget = attachments, rich, budget

    def value(self, data: Any, depth: int) -> Any:
        if data.__class__ not in _CONTAINERS:
            return data
        self._budget.parts(len(data))
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(data, list):
            return [self.value(item, depth + 1) if item.__class__ in _CONTAINERS else item for item in data]
        if "$" not in data:
            return {key: self.value(item, depth + 1) for key, item in data.items()}
        if "n" in data:
            return self._attached(data["$"], data["n"])
        return self._tagged(data["$"], data.get("v"), depth + 1)

    def _tagged(self, tag: Any, inner: Any, depth: int) -> Any:
        if isinstance(tag, str) and tag in _TAGGED_LISTS:
            if not isinstance(inner, list):
                raise ValueError(f"a {tag} that is not made of a list")
            self._budget.parts(len(inner))
            return self._tagged_list(tag, inner, depth)
        try:
            return _SCALAR_READERS[tag](inner)
        except (LookupError, TypeError, AttributeError, ArithmeticError) as exc:
            raise ValueError(f"a malformed value of kind {str(tag)[:40]!r}") from exc

    def _tagged_list(self, tag: str, inner: list[Any], depth: int) -> Any:
        if tag == "dict":
            return dict_of([self._pair(pair, depth) for pair in inner])
        items = [self.value(item, depth) for item in inner]
        if tag == "tuple":
            return tuple(items)
        return set_of(items) if tag == "set" else frozenset(set_of(items))

    def _pair(self, pair: Any, depth: int) -> tuple[Any, Any]:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError("a dict that is not made of pairs")
        return self.value(pair[0], depth + 1), self.value(pair[1], depth + 1)

    def _attached(self, tag: Any, index: Any) -> Any:
        known = isinstance(tag, str) and tag in ("bytes", "text", "frame", "array", "png")
        if not known or type(index) is not int or not 0 <= index < len(self._attachments):
            raise ValueError("an attachment that does not exist")
        self._budget.name(index)
        content = self._attachments[index]
        if tag == "text":
            self._budget.make((1 if content.isascii() else 4) * len(content))
            return content.decode("utf-8", "surrogatepass")
        return content if tag == "bytes" else self._rich(tag, content, self._budget)


def _short(text: Any, most: int) -> str:
    if not isinstance(text, str) or len(text) > most:
        raise ValueError("a malformed number or time, or one that is too long")
    return text


def _decimal(text: Any) -> decimal.Decimal:
    value = decimal.Decimal(_short(text, MAX_DECIMAL_CHARS))
    if abs(value.adjusted()) > MAX_DECIMAL_EXPONENT:
        raise ValueError(f"a Decimal of an exponent over {MAX_DECIMAL_EXPONENT}")
    return value


_SCALARS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    int: ("int", hex),
    float: ("float", repr),
    dt.datetime: ("datetime", dt.datetime.isoformat),
    dt.date: ("date", dt.date.isoformat),
    dt.time: ("time", dt.time.isoformat),
    dt.timedelta: ("timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    decimal.Decimal: ("decimal", str),
    uuid.UUID: ("uuid", str),
    complex: ("complex", lambda value: [repr(value.real), repr(value.imag)]),
}
_SCALAR_READERS: dict[Any, Callable[[Any], Any]] = {
    "int": lambda text: int(_short(text, MAX_INT_BITS // 4 + 3), 16),
    "float": lambda text: float(_short(text, 8)),
    "datetime": lambda text: dt.datetime.fromisoformat(_short(text, MAX_TIME_CHARS)),
    "date": lambda text: dt.date.fromisoformat(_short(text, MAX_TIME_CHARS)),
    "time": lambda text: dt.time.fromisoformat(_short(text, MAX_TIME_CHARS)),
    "timedelta": lambda parts: dt.timedelta(days=parts[0], seconds=parts[1], microseconds=parts[2]),
    "decimal": _decimal,
    "uuid": lambda text: uuid.UUID(_short(text, 64)),
    "complex": lambda parts: complex(float(_short(parts[0], 32)), float(_short(parts[1], 32))),
}
