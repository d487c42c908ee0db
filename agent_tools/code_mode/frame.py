"""Read a guest's DataFrame: its cost is computed from Arrow's lengths before it is made, and it is made in pieces.

The number of bytes says little about the size of a frame: nulls take no bytes, and columns may share theirs. So the
types are checked first, then the memory is charged to the budget, then the data is validated, and only then it is read.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy
import pandas
import pyarrow
from pyarrow import types

from agent_tools.code_mode.frame_schema import checked_schema
from agent_tools.guest.wire.budget import Budget, TooCostly

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
