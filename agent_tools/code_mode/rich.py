"""What the host makes of a guest's frames, arrays and pictures. Nothing is unpickled, and pictures stay bytes."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from typing import Any

MAX_CELLS = 64_000_000  # of a frame: nulls take no bytes on the wire, and eight in memory


@dataclass(frozen=True)
class Attached:
    """Data whose library is not installed here. `kind` is 'frame' (an Arrow IPC stream) or 'array' (npy)."""

    kind: str
    content: bytes


def rich_value(kind: str, content: bytes) -> Any:
    """A DataFrame, an array, or the bytes of a PNG.

    Raises:
        ValueError: the content is not what it says.
    """
    if kind == "png":
        return content
    try:
        return _frame(content) if kind == "frame" else _array(content)
    except ImportError:
        return Attached(kind, content)
    except Exception as exc:  # whatever a library makes of a guest's content
        raise ValueError(f"a {kind} that cannot be read ({str(exc)[:200]})") from exc


def _frame(content: bytes) -> Any:
    import pyarrow

    cells = sum(_cells(message) for message in pyarrow.ipc.MessageReader.open_stream(content))
    if cells > MAX_CELLS:
        raise ValueError(f"{cells:,} cells are more than {MAX_CELLS:,}")
    with pyarrow.ipc.open_stream(content) as stream:
        table = stream.read_all()
    table.validate(full=True)  # Arrow's rule for data of others: nothing in it is used unchecked
    return table.to_pandas()


def _cells(message: Any) -> int:
    """How many cells a message says it has; its bytes bound them only loosely, since nulls take none.

    Read from the flatbuffer itself, as https://arrow.apache.org/docs/format/Columnar.html has it: pyarrow does not
    tell before it has made them.

    Raises:
        ValueError: the message is compressed, and so may be any size.
    """
    data = message.metadata.to_pybytes()
    if message.type == "schema":
        return 0
    header = _field(data, _table(data, 0), 2)
    batch = header if message.type == "record batch" else _field(data, header, 1)
    if _field(data, batch, 3, 0):
        raise ValueError("compressed frames are not taken")
    nodes = _field(data, batch, 1)
    count = struct.unpack_from("<I", data, nodes)[0]
    lengths = (struct.unpack_from("<q", data, nodes + 4 + 16 * index)[0] for index in range(count))
    return sum(abs(length) for length in lengths)


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


def _array(content: bytes) -> Any:
    import numpy

    return numpy.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
