"""Checks of arguments by a JSON schema, which cost a small multiple of the arguments, whatever the schema demands."""

from __future__ import annotations

from typing import Any

import pytest

from agent_tools.argument_schema import MAX_DEPTH, argument_check

Schema = dict[str, Any]


def of_a(schema: Any, **further: Any) -> Schema:
    return {"type": "object", "properties": {"a": schema}, **further}


POINT = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "arguments", "message"),
    [
        (of_a({"type": "string"}), {"a": 5}, "data.a must be string"),
        (of_a({"type": ["string", "null"]}), {"a": True}, "data.a must be string or null"),
        (of_a({}, required=["a"]), {}, r"data must contain \['a'\] properties"),
        (of_a({}, additionalProperties=False), {"b": 1}, r"data must not contain \{'b'\} properties"),
        (of_a({}, additionalProperties={"type": "integer"}), {"b": ""}, "data.b must be integer"),
        (of_a({"enum": ["red", None, 2]}), {"a": "blue"}, "data.a must be one of"),
        (of_a({"const": 1}), {"a": 2}, "data.a must be one of"),
        (of_a({"minimum": 1}), {"a": 0}, "data.a must be bigger than or equal to 1"),
        (of_a({"maxLength": 2}), {"a": "abc"}, "data.a must be shorter than or equal to 2"),
        (of_a({"items": {"type": "integer"}, "maxItems": 9}), {"a": [1, ""]}, r"data.a\[1\] must be integer"),
        (of_a({"prefixItems": [{"type": "integer"}], "items": True}), {"a": [""]}, r"data.a\[0\] must be integer"),
        (of_a({"anyOf": [{"type": "integer"}, {"type": "null"}]}), {"a": ""}, "data.a cannot be validated"),
        (of_a({"oneOf": [{"type": "integer"}, {"type": "null"}]}), {"a": ""}, "data.a cannot be validated"),
        (of_a({"allOf": [{"minimum": 1}, {"maximum": 2}]}), {"a": 3}, "data.a must be smaller"),
        (of_a({"$ref": "#/$defs/a%20point"}, **{"$defs": {"a point": POINT}}), {"a": {"x": ""}}, "data.a.x must be"),
        ({"$ref": "#/definitions/Point", "definitions": {"Point": POINT}}, {"y": 1}, "must contain"),
        ({"properties": {"pattern": {"type": "string"}, "$ref": {"type": "null"}}}, {"$ref": 1}, "must be null"),
        ({"properties": {"{a}": {"items": {"type": "null"}}}}, {"{a}": [1]}, r"data.\{a\}\[0\] must be null"),
    ],
)
def test_arguments_that_do_not_match_are_refused_by_name(schema: Schema, arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        argument_check(schema)(arguments)


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        pytest.param(of_a({"format": "email"}), {"a": "." * 9}, id="a regular expression of the library"),
        pytest.param(of_a({"pattern": "^(a+)+$"}), {"a": "a" * 64 + "!"}, id="one of the schema"),
        pytest.param({"patternProperties": {"^(a+)+$": False}}, {"a": 1}, id="one for names"),
        pytest.param({"propertyNames": {"pattern": "^(a+)+$"}}, {"a" * 64 + "!": 1}, id="another for names"),
        pytest.param(of_a({"uniqueItems": True}), {"a": [1, 1]}, id="each item with each"),
        pytest.param(of_a({"multipleOf": 0.5}), {"a": 10**5000}, id="an integer in decimals"),
        pytest.param(of_a({"contains": {"pattern": "(a+)+$"}}), {"a": [1]}, id="contains"),
    ],
)
def test_keywords_that_cost_more_than_their_bytes_are_not_checked(schema: Schema, arguments: Any) -> None:
    argument_check(schema)(arguments)


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(of_a({"oneOf": [{"pattern": "a"}, {"pattern": "b"}]}), id="oneOf, of which both match now"),
        pytest.param(of_a({"not": {"pattern": "b"}}), id="not"),
        pytest.param(of_a({"if": {"pattern": "b"}, "then": {"type": "null"}}), id="if"),
        pytest.param({"patternProperties": {"a": True}, "additionalProperties": False}, id="names by pattern"),
        pytest.param({"required": ["a"], "additionalProperties": False, "properties": {"b": True}}, id="no way"),
        pytest.param(of_a({"pattern": r"\p{L}(?<n>a)"}), id="a pattern of JavaScript"),
        pytest.param(of_a({"type": "any"}), id="an unknown type"),
        pytest.param(of_a({"type": [{}]}), id="a type that is none"),
        pytest.param(of_a({"required": True}), id="required, as in draft 3"),
        pytest.param(of_a({"required": [{}], "additionalProperties": False}), id="a name that is none"),
        pytest.param(of_a({"minLength": 1, "exclusiveMinimum": True}), id="a bound of draft 4"),
        pytest.param(of_a({"minimum": float("nan"), "enum": [float("inf")]}), id="no numbers of JSON"),
        pytest.param(of_a({"anyOf": [], "items": 5, "properties": []}), id="keywords of other types"),
        pytest.param(of_a({"$ref": "http://localhost:1/schema"}), id="a schema elsewhere"),
        pytest.param(of_a({"$ref": "#/$defs/Missing"}), id="a definition that is missing"),
        pytest.param(of_a({"$ref": 5}), id="a reference that is none"),
        pytest.param(of_a(5), id="a schema that is none"),
    ],
)
def test_a_part_that_cannot_be_checked_refuses_nothing(schema: Schema) -> None:
    argument_check(schema)({"a": "ab"})


class Counted(dict[str, Any]):
    """An object that counts how often a check looks into one."""

    looks = 0

    def keys(self) -> Any:
        Counted.looks += 1
        return super().keys()


def test_a_definition_that_contains_itself_is_not_checked_again_at_each_level() -> None:
    """Each of the two branches would look at all that is below `left` before it came to `kind`."""
    branches = [
        {"properties": {"left": {"$ref": "#/$defs/Tree"}, "kind": {"enum": [kind]}}, "required": ["kind"]}
        for kind in ("and", "or")
    ]
    schema = of_a({"$ref": "#/$defs/Tree"}, **{"$defs": {"Tree": {"anyOf": [*branches, {"type": "string"}]}}})
    arguments: Any = ""
    for _ in range(12):
        arguments = Counted(left=arguments, kind="or")
    Counted.looks = 0
    argument_check(schema)({"a": arguments})
    assert Counted.looks < 12
    with pytest.raises(ValueError, match="cannot be validated by any definition"):
        argument_check(schema)({"a": {"left": "", "kind": "xor"}})


def nested(levels: int) -> Schema:
    schema: Schema = {"type": "integer"}
    for _ in range(levels):
        schema = {"anyOf": [{"type": "array", "items": schema}]}
    return schema


def test_a_deep_schema_is_checked_down_to_its_limit() -> None:
    deep: Any = ""
    for _ in range(MAX_DEPTH):
        deep = [deep]
    argument_check(of_a(nested(100)))({"a": deep})
    with pytest.raises(ValueError, match="cannot be validated"):
        argument_check(of_a(nested(MAX_DEPTH // 2 - 1)))({"a": ""})
    chain = {str(level): of_a({"$ref": f"#/$defs/{level + 1}"}) for level in range(3000)}
    argument_check({"$ref": "#/$defs/0", "$defs": chain})({"a": {"a": {}}})
