"""Programs for the machine of unfold.py, written as the values they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tests.fuzz.unfold import OPERATIONS, times_byte

_CODES = {operation.__name__: code for code, operation in enumerate(OPERATIONS)}
_CONSTANTS = (None, True, False, "")
MOST_KEYS = 31  # of an object: its operand has five bits


@dataclass(frozen=True)
class Many:
    """A value 2**power times: the `same`, a `series` of others, `keyed` in an object, `nested`, or `long` as text."""

    value: Any
    how: Literal["same", "series", "keyed", "nested", "long"]
    power: int


def program(value: Any) -> bytes:
    """The program that leaves this value on the stack."""
    match value:
        case Many():
            return program(value.value) + _operation(value.how, times_byte(value.power))
        case list():
            return b"".join(map(program, value)) + _operation("array", len(value))
        case dict():
            assert len(value) <= MOST_KEYS, value
            items = b"".join(program(key) + program(item) for key, item in value.items())
            return items + _operation("object", len(value))
        case str() if value:
            data = value.encode("utf-8", "surrogateescape")
            return _operation("literal", len(data)) + data
        case int() if not isinstance(value, bool):
            return _number(value)
    return _operation(
        "constant", next(index for index, each in enumerate(_CONSTANTS) if each is value or each == value)
    )


def _number(value: int) -> bytes:
    if -8 <= value < 248:
        return _operation("small", value + 8)
    bits = value.bit_length()
    assert bits < 70, value
    assert value == (1 << bits) - 1, value
    return _operation("power", bits)


def _operation(name: str, operand: int) -> bytes:
    return bytes((_CODES[name], operand))
