"""What the host makes of a guest's frames, arrays and pictures. Nothing is unpickled, and pictures stay bytes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any


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

    with pyarrow.ipc.open_stream(content) as stream:
        table = stream.read_all()
    table.validate(full=True)  # Arrow's rule for data of others: nothing in it is used unchecked
    return table.to_pandas()


def _array(content: bytes) -> Any:
    import numpy

    return numpy.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
