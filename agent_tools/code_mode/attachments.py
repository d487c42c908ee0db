"""The values of a guest's frames, arrays and pictures on the host. Nothing is unpickled, and pictures stay bytes."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Any

from agent_tools.guest.wire.budget import Budget, GivenUp, TooCostly

MAX_EMPTY_ITEM_BYTES = 1024 * 1024  # bytes of one item, in the header of an array without items


@dataclass(frozen=True)
class Attachment:
    """Data whose library is not installed here: an Arrow IPC stream ('frame') or an npy file ('array')."""

    kind: str
    content: bytes


def rich_value(kind: str, content: bytes, budget: Budget | None = None) -> Any:
    """Make a DataFrame, an array, or the bytes of a PNG, within a budget; by default that of a message of this size.

    Raises:
        ValueError: the content is malformed, or costs more than the budget.
        GivenUp: the call that waited for it has ended.
    """
    if kind == "png":
        return content
    try:
        return _read(kind, content, budget or Budget(len(content)))
    except ImportError:
        return Attachment(kind, content)
    except GivenUp:
        raise
    except TooCostly as exc:
        raise TooCostly(f"a {kind} that cannot be read ({exc})") from exc
    except Exception as exc:  # a library may raise any exception for hostile content
        raise ValueError(f"a {kind} that cannot be read ({str(exc)[:200]})") from exc


def _read(kind: str, content: bytes, budget: Budget) -> Any:
    if kind != "frame":
        return _array(content, budget)
    from agent_tools.code_mode.frame import read_frame  # loads pandas and pyarrow, which need not be installed

    return read_frame(content, budget)


def _array(content: bytes, budget: Budget) -> Any:
    """Read the array of an npy file. Its header is compared with the size of its data before any memory is taken.

    Raises:
        ValueError: it is not an npy file, it holds Python objects, or its data has another size than its header says.
    """
    import numpy.lib.format  # loads numpy, which need not be installed

    npy = numpy.lib.format
    file = io.BytesIO(content)
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"npy of version {version}")
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, is_fortran, dtype = read_header(file)
    count, start = math.prod(shape), file.tell()
    if dtype.hasobject:
        raise ValueError("Python objects are not accepted")
    if dtype.itemsize > max(len(content), MAX_EMPTY_ITEM_BYTES) or (count and not dtype.itemsize):
        raise ValueError("the size of its items is impossible")
    if min(shape, default=0) < 0 or count * dtype.itemsize != len(content) - start:
        raise ValueError(f"{len(content) - start:,} bytes for {count:,} items of {dtype.itemsize:,} bytes")
    budget.make(len(content))
    flat = numpy.frombuffer(content, dtype, count, start) if count else numpy.empty(0, dtype)
    return flat.copy().reshape(shape, order="F" if is_fortran else "C")
