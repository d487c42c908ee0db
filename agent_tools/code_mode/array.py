"""A guest's array: its header is compared with the size of its data before any memory is taken."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy
from numpy.lib import format as npy

from agent_tools.guest.wire.budget import Budget

MAX_EMPTY_ITEM_BYTES = 1024 * 1024  # bytes of one item, in the header of an array without items


def read_array(content: bytes, budget: Budget) -> Any:
    """Read the array of an npy file.

    Raises:
        ValueError: it is no npy file, it holds Python objects, or its data has another size than its header says.
    """
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
        raise ValueError("the size of its items is impossible")
    if min(shape, default=0) < 0 or count * dtype.itemsize != len(content) - start:
        raise ValueError(f"{len(content) - start:,} bytes for {count:,} items of {dtype.itemsize:,} bytes")
    budget.make(len(content))
    flat = numpy.frombuffer(content, dtype, count, start) if count else numpy.empty(0, dtype)
    return flat.copy().reshape(shape, order="F" if is_fortran else "C")
