"""Calls of host functions, from the guest's bytes to the values a function gets.

The input's first byte says what the rest is: `R`, the wire's bytes as they are; else a program for the arguments (see
unfold.py) and attachments, with MARK between them, for which the sizes are made.
"""

from __future__ import annotations

import contextlib

import numpy
import pandas
import pyarrow  # noqa: F401  (where it is not loaded, its memory is not counted)

from agent_tools.code_mode.attachments import rich_value
from agent_tools.code_mode.functions import TypedFunction
from agent_tools.guest.wire.calls import MESSAGE, CallReader
from agent_tools.guest.wire.framing import FrameError, pack_parts
from agent_tools.guest.wire.values import decode, encode
from agent_tools.runtime.host_calls.function import ArgumentError
from tests.fuzz import unfold
from tests.fuzz.oracle import MIB, Bound, Parts, Target

MARK = b"<|>"
KINDS = ("tuple", "set", "frozenset", "dict", "int", "float", "datetime", "date", "time", "timedelta", "decimal")
WORDS = ("$", "v", "n", "bytes", "text", "frame", "array", "png", "uuid", "complex", "args", "kwargs", *KINDS)
WORDS += ("0x1f", "1E4000000", "2020-01-01T00:00:00", "nan", "-inf", "1" * 900)


def unfold_call(data: bytes) -> Parts:
    """What comes over the wire."""
    if data[:1] == b"R":
        return [unfold.text(data[1:])]
    program, *attachments = data[1:].split(MARK)
    attachments = [unfold.text(each, unfold.MOST // 4) for each in attachments]
    head = {"op": "call", "id": 1, "name": "f", "args": unfold.values(program, WORDS), "kwargs": {}}
    return [pack_parts(MESSAGE, [unfold.as_json(head), *attachments])]


def read_calls(parts: Parts) -> None:
    """Read calls, make values of their arguments, and offer each to functions that want something of it."""
    reader = CallReader()
    for part in parts:
        for head, attachments, _ in reader.feed(part):
            arguments = decode([head.get("args"), head.get("kwargs")], attachments, rich_value)
            for each in arguments[0] if isinstance(arguments[0], list) else ():
                _offer(each)


def _offer(argument: object) -> None:
    for function in FUNCTIONS:
        with contextlib.suppress(ArgumentError):
            coroutine = function.call((argument,), {})
            with contextlib.suppress(StopIteration):
                coroutine.send(None)


async def takes_whole(value: int) -> None: ...


async def takes_text(value: str) -> None: ...


async def takes_number(value: float) -> None: ...


async def takes_whole_ones(value: list[int]) -> None: ...


FUNCTIONS = tuple(map(TypedFunction, (takes_whole, takes_text, takes_number, takes_whole_ones)))
MADE = ([{"$": 1}, (1, 2)], {1, 2.5}, b"bytes", "text" * 5000, numpy.arange(3), pandas.DataFrame({"a": [1, None]}))


def arrays_and_frames() -> list[bytes]:
    """What attachments look like."""
    return [attachment for made in MADE[-2:] for attachment in encode(made)[1]]


TARGET = Target(
    read_calls,
    unfold_call,
    allowed=(FrameError, ValueError, TypeError, ArithmeticError),  # what call_run.py takes for bad arguments
    bound=Bound(seconds_per_byte=2e-6, bytes=24 * MIB),
    vocabulary=WORDS,
    words=(MARK, b"ARROW1", b"\x93NUMPY\x01\x00", b"{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }"),
    max_len=8192,
)
