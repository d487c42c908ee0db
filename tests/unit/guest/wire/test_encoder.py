"""JSON by an encoder that is made once: the same as json's own, the complaints too."""

from __future__ import annotations

import json
from collections.abc import Callable
from json import encoder as accelerated
from typing import Any

import pytest

from agent_tools.guest.wire.encoder import encoder_of

OPTIONS: list[dict[str, Any]] = [{}, {"ensure_ascii": False}, {"allow_nan": False}, {"default": repr}]
VALUES = [
    'a "quoted"\nline of é and \ud800',
    *(1, -(10**400), 1.5, float("nan"), float("-inf"), None, True, "", [], {}),
    {"a": [1, {"b": (2, "3")}], "": None},
    {7: "int", None: "none", True: "bool", 1.5: "float"},
    {(1,): "a key that cannot be one"},
    [b"bytes"],
    [object],
]


def outcome(encode: Callable[[Any], str], value: Any) -> Any:
    try:
        return encode(value)
    except Exception as exc:
        return type(exc), str(exc)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_writes_what_json_writes(options: dict[str, Any]) -> None:
    ours, theirs = encoder_of(**options), json.JSONEncoder(**options).encode
    for value in VALUES:
        assert outcome(ours, value) == outcome(theirs, value), value
        assert outcome(ours, "as before") == '"as before"'


def test_it_does_so_without_the_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerated, "c_make_encoder", None)
    assert encoder_of(ensure_ascii=False)({"a": [1.5, "é"]}) == '{"a": [1.5, "é"]}'


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(RecursionError):
        encoder_of()(value)
