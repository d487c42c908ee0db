"""The schema of a guest's frame, checked: types, numbers of columns, and the metadata that pandas stores in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow
from pyarrow import types

from agent_tools.guest.wire.budget import MAX_PARTS
from agent_tools.json_parts import has_more_parts

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
