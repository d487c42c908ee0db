"""Read a guest's DataFrame: its cost is computed from Arrow's lengths before it is made, and it is made in pieces.

The number of bytes says little about the size of a frame: nulls take no bytes, and columns may share theirs. So the
types are checked first, then the memory is charged to the budget, then the data is validated, and only then it is read.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import pandas
import pyarrow
from pyarrow import types

from agent_tools.guest.wire.budget import MAX_PARTS, Budget, TooCostly
from agent_tools.text import has_more_parts

# The schema of a guest's frame, checked: types, numbers of columns, and the metadata that pandas stores in it.


MAX_SCHEMA_BYTES = 4 * 1024 * 1024
MAX_FIELDS = 5_000  # columns, and fields in them
MAX_NAME_CHARS = 1_000
MAX_NESTED_NAMES_CHARS = 100_000  # of all column names together, if pandas reads each of them as a tuple
MAX_LEVELS = 16  # levels of an index, of the columns' index, and of types in each other
EXTENSIONS = ("pandas.period", "pandas.interval")

Metadata = Mapping[str, Any]
"""A part of the metadata that pandas stores in a schema as JSON: names and types of its columns and indexes."""

_DTYPE = re.compile(r"[A-Za-z]{2}[A-Za-z_-]*(?:8|16|32|64|128)?(?:\[[\w ,/+:=.-]{0,64}\])?")


def checked_schema(message: Any) -> tuple[Any, list[str]]:
    """Return the schema in a frame's first message, and the names of its index columns. No data is read.

    Raises:
        ValueError: it is not a schema, it is too large, or one of its types cannot be sent.
    """
    data = message.metadata.to_pybytes()
    if message.type != "schema" or len(data) > MAX_SCHEMA_BYTES:
        raise ValueError(f"its schema is missing, or has more than {MAX_SCHEMA_BYTES:,} bytes")
    if b"arrow.py_extension_type" in data:  # old versions of Arrow unpickle it
        raise ValueError("Python's own types do not cross")
    schema = pyarrow.ipc.read_schema(message)
    for count, field in enumerate(_fields(schema), 1):
        _check_name(field.name)
        if count > MAX_FIELDS:
            raise ValueError(f"more than {MAX_FIELDS:,} columns and fields in columns")
    for field in schema:
        check_type(field.type)
    return schema, _check_metadata(schema)


def check_type(kind: Any, depth: int = 0) -> None:
    """Check that a type can be sent. Views, run ends, unions and dictionaries in lists unpack to more than their bytes.

    Raises:
        ValueError: it cannot be sent.
    """
    if depth > MAX_LEVELS:
        raise ValueError(f"types nested deeper than {MAX_LEVELS} levels")
    if getattr(kind, "extension_name", None) in EXTENSIONS:
        check_type(kind.storage_type, depth + 1)
    elif types.is_dictionary(kind) and depth == 0:
        if types.is_nested(kind.value_type) or types.is_decimal(kind.value_type):
            raise ValueError(f"categories of type {kind.value_type} do not cross")
        check_type(kind.value_type, depth + 1)
    elif _is_nested(kind):
        for index in range(kind.num_fields):
            check_type(kind.field(index).type, depth + 1)
    elif not _is_plain(kind):
        raise ValueError(f"columns of type {str(kind)[:100]} do not cross")


def _is_nested(kind: Any) -> bool:
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(is_list or types.is_struct(kind) or types.is_map(kind))


def _is_plain(kind: Any) -> bool:
    if types.is_fixed_size_binary(kind):
        return bool(kind.byte_width)
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    others = (types.is_primitive, types.is_null, types.is_decimal)
    return any(each(kind) for each in (*texts, *others))


def _fields(schema: Any) -> Iterator[Any]:
    """Yield all fields and the fields in them, as deep as types may go."""
    waiting = [(field, 0) for field in schema]
    while waiting:
        field, depth = waiting.pop()
        yield field
        if depth <= MAX_LEVELS and _is_nested(field.type):
            waiting += [(field.type.field(index), depth + 1) for index in range(field.type.num_fields)]


def _check_metadata(schema: Any) -> list[str]:
    """Check the metadata from which pandas makes the index and the columns' names; return the index columns."""
    text = (schema.metadata or {}).get(b"pandas")
    if text is None:
        return []
    if has_more_parts(text, MAX_PARTS):
        raise ValueError("its pandas metadata has too many parts")
    stored = json.loads(text)
    columns, index, names = stored["columns"], stored["index_columns"], stored.get("column_indexes", [])
    for part in (stored, *columns, *names):
        if not isinstance(part, Mapping):
            raise ValueError("its pandas metadata is malformed")
    if len(columns) > len(schema) or len(index) > MAX_LEVELS or len(names) > MAX_LEVELS:
        raise ValueError("its pandas metadata describes more columns than it has")
    _check_columns(columns)
    _check_column_names(schema, names)
    index_columns = [each for each in index if isinstance(each, str)]
    if len(set(index_columns)) < len(index_columns):
        raise ValueError("an index column that is named twice")
    return index_columns


def _check_columns(columns: list[Metadata]) -> None:
    for key in ("field_name", "name"):
        given = [column[key] for column in columns if column.get(key) is not None]
        for each in given:
            _check_name(each)
        if key == "field_name" and len(set(given)) < len(given):
            raise ValueError("its pandas metadata describes a column twice")
    for column in columns:
        if len(str(column["numpy_type"])) > MAX_NAME_CHARS:
            raise ValueError("the name of a type is too long")


def _check_column_names(schema: Any, names: list[Metadata]) -> None:
    if len(names) > 1 and sum(len(name) for name in schema.names) > MAX_NESTED_NAMES_CHARS:
        raise ValueError(f"columns of several levels with more than {MAX_NESTED_NAMES_CHARS:,} characters")
    for level in names:
        for key in ("pandas_type", "numpy_type"):
            if not _DTYPE.fullmatch(str(level.get(key, "object"))):
                raise ValueError(f"column names of type {str(level[key])[:100]!r}")


def _check_name(name: Any) -> None:
    if len(str(name)) > MAX_NAME_CHARS:
        raise ValueError(f"a name of more than {MAX_NAME_CHARS:,} characters")


MAX_CHUNKS = 100_000  # record batches times columns
MAX_CATEGORIES = 50_000  # categories of one column
MAX_LEVEL_TEXTS = 20_000  # texts in an index of several levels: pandas' hashes of them are predictable
PIECE_ROWS = 2_000  # rows of Python objects that are made at once; between two pieces other threads can run

_TEXT, _OBJECT, _LIST, _STRUCT, _NUMBER = 32, 64, 128, 256, 16  # bytes of a cell in memory, besides those of its data


def read_frame(content: bytes, budget: Budget) -> Any:
    """Read the DataFrame of an Arrow IPC stream.

    Raises:
        ValueError: it is not such a stream, or has types that cannot be sent.
        TooCostly: it would take more than the budget.
    """
    messages = pyarrow.ipc.MessageReader.open_stream(content)
    schema, index = checked_schema(messages.read_next_message())
    for count, message in enumerate(messages):
        budget.look_up()
        _check_message(message)
        if count * len(schema) > MAX_CHUNKS:
            raise TooCostly(f"more than {MAX_CHUNKS:,} chunks of columns")
    with pyarrow.ipc.open_stream(content) as stream:
        table = stream.read_all()
    table.validate()  # lengths and offsets fit the buffers; cheap
    for column in table.columns:
        for chunk in column.chunks:
            budget.make(_cost(chunk, budget))
    _check_index(table, index)
    table.validate(full=True)  # Arrow demands it for untrusted data
    return _frame(table, index, budget)


def _cost(array: Any, budget: Budget) -> int:
    """Return an upper bound for the bytes that an array takes as part of a DataFrame."""
    budget.look_up()
    kind, count = array.type, len(array)
    if types.is_dictionary(kind):
        if len(array.dictionary) > MAX_CATEGORIES:
            raise TooCostly(f"more than {MAX_CATEGORIES:,} categories in one column")
        return _NUMBER * count + _cost(array.dictionary, budget)
    if hasattr(kind, "extension_name"):
        return _NUMBER * count + _cost(array.storage, budget)
    if types.is_struct(kind):
        return _STRUCT * count + sum(_cost(array.field(index), budget) for index in range(kind.num_fields))
    if types.is_map(kind):
        return _LIST * count + _LIST * len(array.keys) + _cost(array.keys, budget) + _cost(array.items, budget)
    if types.is_nested(kind):
        return _LIST * count + _cost(array.values, budget)
    return _cell(kind) * count + int(array.nbytes)


def _cell(kind: Any) -> int:
    if types.is_string(kind) or types.is_large_string(kind):
        return _TEXT
    return _OBJECT if _is_object(kind) else _NUMBER


def _is_object(kind: Any) -> bool:
    """Return whether each cell of a column becomes a Python object of its own."""
    if types.is_dictionary(kind) or hasattr(kind, "extension_name"):
        return False
    if types.is_string(kind) or types.is_large_string(kind):
        return not _has_text_columns()
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_null(kind)
    return not (is_number or types.is_timestamp(kind) or types.is_duration(kind))


def _has_text_columns() -> bool:
    """Return whether this pandas keeps texts in Arrow's memory."""
    return int(pandas.__version__.partition(".")[0]) >= 3


def _check_index(table: Any, index: list[str]) -> None:
    """Check an index of several levels, which is hashed when it is made.

    Raises:
        TooCostly: too many of its cells are not numbers.
    """
    kinds = [field.type for field in table.schema if field.name in index]
    hashed = [kind for kind in kinds if types.is_string(kind) or types.is_large_string(kind) or _is_object(kind)]
    if len(kinds) > 1 and len(hashed) * len(table) > MAX_LEVEL_TEXTS:
        raise TooCostly(f"more than {MAX_LEVEL_TEXTS:,} texts in an index of several levels; send it as columns")


def _frame(table: Any, index: list[str], budget: Budget) -> Any:
    """Make a DataFrame of the table; columns of Python objects are made piece by piece."""
    schema = table.schema
    notes = (schema.pandas_metadata or {}).get("columns", [])
    special = {note.get("field_name") for note in notes if note["numpy_type"] != "object"}
    columns = [(number, field) for number, field in enumerate(schema) if field.name not in index]
    apart: dict[int, Any] = {}
    for position, (number, field) in enumerate(columns):
        if len(table) > PIECE_ROWS and _is_object(field.type) and field.name not in special:
            apart[position] = table.column(number)
            table = table.set_column(number, field.name, pyarrow.nulls(len(table)))
    frame = table.to_pandas()
    for position, column in apart.items():
        pieces = []
        for start in range(0, len(table), PIECE_ROWS):
            budget.look_up()
            pieces.append(column.slice(start, PIECE_ROWS).to_pandas().to_numpy())
        frame.isetitem(position, numpy.concatenate(pieces))
    return frame


def _check_message(message: Any) -> None:
    """Check in the flatbuffer itself that a batch is not compressed: a compressed one may have any size.

    pyarrow only reports compression after unpacking. The format: https://arrow.apache.org/docs/format/Columnar.html.

    Raises:
        ValueError: the batch is compressed, or it is a second schema.
    """
    data = message.metadata.to_pybytes()
    header = _field(data, _table(data, 0), 2)
    batch = header if message.type == "record batch" else _field(data, header, 1)
    if message.type == "schema" or _field(data, batch, 3, 0):
        raise ValueError("compressed frames and a second schema are not accepted")


def _slot(data: bytes, table: int, slot: int) -> int:
    """Return the offset of a field from the flatbuffer's table that it belongs to; 0 if it is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, vtable)[0]
    return int(struct.unpack_from("<H", data, vtable + 4 + 2 * slot)[0]) if 4 + 2 * slot < size else 0


def _table(data: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, slot: int, default: int | None = None) -> int:
    """Return the position that a field points to."""
    at = _slot(data, table, slot)
    if not at and default is None:
        raise ValueError("a field is missing")
    return _table(data, table + at) if at else int(default or 0)
