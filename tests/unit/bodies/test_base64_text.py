"""Bytes in JSON."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from agent_tools.bodies.base64_text import Base64, encoded

READ = TypeAdapter[bytes](Base64)


def test_bytes_of_any_length_are_read_as_they_are_written() -> None:
    for size in (0, 1, 2, 3, 786_431, 786_432, 786_433, 2_000_000):
        data = bytes(range(256)) * (size // 256 + 1)
        text = encoded(data[:size])
        assert text == base64.b64encode(data[:size]).decode()
        assert READ.validate_python(text) == data[:size]


@pytest.mark.parametrize("text", ["=", "AA==AA==", "AAA", "A A A A", "AA=" + "A" * 786_429 + "AAAA"])
def test_what_is_no_base64_is_refused(text: Any) -> None:
    with pytest.raises(ValidationError):
        READ.validate_python(text)
    with pytest.raises(ValidationError):
        READ.validate_python("A" * (786_432 - 4) + text + "A" * 786_432)
