"""Processor time is measured without coverage's tracer, which takes as much of it as the readers."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def untraced() -> Iterator[None]:
    tracer = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(tracer)
