"""An array of a guest: its header is held against its bytes before anything is made."""

from __future__ import annotations

import io
import math
from typing import Any

from agent_tools.guest.wire.budget import Budget

MAX_EMPTY_ITEM_BYTES = 1024 * 1024  # of one item of an array that has no items to show for it


def read_array(content: bytes, budget: Budget) -> Any:
    """The array of an npy file.

    Raises:
        ValueError: it is none, it holds Python objects, or it has not the bytes that its header says.
    """
    import numpy
    from numpy.lib import format as npy

    file = io.BytesIO(content)
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"npy of version {version}")
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, is_fortran, dtype = read_header(file)
    count, start = math.prod(shape), file.tell()
    if dtype.hasobject:
        raise ValueError("Python objects are not taken")
    if dtype.itemsize > max(len(content), MAX_EMPTY_ITEM_BYTES) or (count and not dtype.itemsize):
        raise ValueError("items of no size, or of one they cannot have")
    if min(shape, default=0) < 0 or count * dtype.itemsize != len(content) - start:
        raise ValueError(f"{len(content) - start:,} bytes for {count:,} items of {dtype.itemsize:,} bytes")
    budget.make(len(content))
    flat = numpy.frombuffer(content, dtype, count, start) if count else numpy.empty(0, dtype)
    return flat.copy().reshape(shape, order="F" if is_fortran else "C")
