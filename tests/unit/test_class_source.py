"""The source of TypedDicts, whatever their notes and docstrings hold."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from agent_tools.code_mode.typed_dict_source import Field, typed_dict_source


def test_a_class_with_all_kinds_of_fields() -> None:
    fields = [Field("a", "int"), Field("b", "str", False, "a\nnote"), Field("c", "list[int]", note="  ")]
    assert typed_dict_source("Row", fields, "One  row.") == (
        'class Row(TypedDict):\n    """One row."""\n    a: int\n    b: NotRequired[str]  # a note\n    c: list[int]'
    )
    assert typed_dict_source("Empty", []) == "class Empty(TypedDict):\n    pass"


@pytest.mark.parametrize("text", ['a """ b', "back\\slash\\", 'ends in "', "x\n    import os"])
def test_any_text_stays_text(text: str) -> None:
    source = "from typing import TypedDict\n\n" + typed_dict_source("Row", [Field("a", "int", note=text)], text)
    namespace: dict[str, Any] = {}
    exec(compile(source, "tools", "exec"), namespace)
    assert inspect.getdoc(namespace["Row"]) == " ".join(text.split())
    assert namespace["Row"].__annotations__.keys() == {"a"}
