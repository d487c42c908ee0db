"""Arguments that a model or a sandbox wrote, checked by JSON schemas whose keywords may cost more than the arguments.

The input is a program for the arguments (see unfold.py).
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from agent_tools.argument_schema import argument_check
from tests.fuzz import unfold
from tests.fuzz.oracle import Bound, Parts, Target

WORDS = ("a", "b", "items", "kind", "and", "or", "." * 2000, "a" * 2000, "x@y.z", "1" * 900)
TREE = [
    {"properties": {"a": {"$ref": "#/$defs/Tree"}, "kind": {"const": kind}}, "required": ["kind"]}
    for kind in ("and", "or", "not")
]
EACH: tuple[dict[str, Any], ...] = (
    {"format": "email"},
    {"pattern": "^(a+)+$"},
    {"uniqueItems": True, "items": {"multipleOf": 0.1}},
    {"type": ["object", "array"], "additionalProperties": {"$ref": "#/$defs/Tree"}},
    {"$ref": "#/$defs/Tree"},
)
CHECKS = [
    argument_check({"properties": dict.fromkeys(WORDS, each), "$defs": {"Tree": {"anyOf": TREE}}, **each})
    for each in EACH
]


def check(parts: Parts) -> None:
    """Check each value by each schema."""
    values: list[Any] = []
    with contextlib.suppress(RecursionError):  # of json.loads, which is not what is tested here
        values = json.loads(b"".join(parts))
    for value in values:
        for each in CHECKS:
            with contextlib.suppress(ValueError):
                each(value)


TARGET = Target(
    check,
    lambda data: [unfold.as_json(unfold.values(data[1:], WORDS))],
    bound=Bound(seconds_per_byte=2e-6),
    vocabulary=WORDS,
)
