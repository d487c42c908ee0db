"""A DataFrame of a guest: counted by Arrow's own lengths before it is made, and made in pieces.

The bytes of a frame tell little of its size: nulls take none, and columns may share theirs. So its types are checked
first (frame_schema.py), then what it will take is charged, then its data is validated, and only then read.
"""

from __future__ import annotations

import struct
from typing import Any

from agent_tools.code_mode.frame_schema import checked_schema
from agent_tools.guest.wire.budget import Budget, TooCostly

MAX_CHUNKS = 100_000  # record batches times columns
MAX_CATEGORIES = 50_000  # of one column
MAX_LEVEL_TEXTS = 20_000  # in an index of several levels: pandas hashes them in a way that anybody can foresee
PIECE_ROWS = 2_000  # rows of Python objects made at once: between them other threads have their turn

_TEXT, _OBJECT, _LIST, _STRUCT, _NUMBER = 32, 64, 128, 256, 16  # bytes of a cell in memory, beside its own


def read_frame(content: bytes, budget: Budget) -> Any:
    """The DataFrame of an Arrow IPC stream.

    Raises:
        ValueError: it is none, or of types that do not cross.
        TooCostly: it would take more than the budget has.
    """
    import pyarrow

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
    table.validate(full=True)  # Arrow's rule for data of others: nothing in it is used unchecked
    return _frame(table, index, budget)


def _cost(array: Any, budget: Budget) -> int:
    """The bytes that an array takes as part of a DataFrame, not less."""
    from pyarrow import types

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
    from pyarrow import types

    if types.is_string(kind) or types.is_large_string(kind):
        return _TEXT
    return _OBJECT if _is_object(kind) else _NUMBER


def _is_object(kind: Any) -> bool:
    """Whether the cells of a column become Python objects, all different."""
    from pyarrow import types

    if types.is_dictionary(kind) or hasattr(kind, "extension_name"):
        return False
    if types.is_string(kind) or types.is_large_string(kind):
        return not _has_text_columns()
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_null(kind)
    return not (is_number or types.is_timestamp(kind) or types.is_duration(kind))


def _has_text_columns() -> bool:
    """Whether texts stay Arrow's in this pandas."""
    import pandas

    return int(pandas.__version__.partition(".")[0]) >= 3


def _check_index(table: Any, index: list[str]) -> None:
    """An index of several levels is hashed when it is made.

    Raises:
        TooCostly: it has too many cells that are no numbers.
    """
    from pyarrow import types

    kinds = [field.type for field in table.schema if field.name in index]
    hashed = [kind for kind in kinds if types.is_string(kind) or types.is_large_string(kind) or _is_object(kind)]
    if len(kinds) > 1 and len(hashed) * len(table) > MAX_LEVEL_TEXTS:
        raise TooCostly(f"more than {MAX_LEVEL_TEXTS:,} texts in an index of several levels; send it as columns")


def _frame(table: Any, index: list[str], budget: Budget) -> Any:
    """The table as a DataFrame; columns of Python objects are made piece by piece."""
    import numpy
    import pyarrow

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
    """Read from the flatbuffer itself whether a batch is compressed, and so of any size.

    https://arrow.apache.org/docs/format/Columnar.html has it; pyarrow does not tell before it has unpacked them.

    Raises:
        ValueError: it is.
    """
    data = message.metadata.to_pybytes()
    header = _field(data, _table(data, 0), 2)
    batch = header if message.type == "record batch" else _field(data, header, 1)
    if message.type == "schema" or _field(data, batch, 3, 0):
        raise ValueError("compressed frames are not taken, nor a second schema")


def _slot(data: bytes, table: int, slot: int) -> int:
    """Where a field of a flatbuffer's table is, relative to the table; 0 if it is not there."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, vtable)[0]
    return int(struct.unpack_from("<H", data, vtable + 4 + 2 * slot)[0]) if 4 + 2 * slot < size else 0


def _table(data: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, slot: int, default: int | None = None) -> int:
    """Where what a field points to begins."""
    at = _slot(data, table, slot)
    if not at and default is None:
        raise ValueError("a field is missing")
    return _table(data, table + at) if at else int(default or 0)
