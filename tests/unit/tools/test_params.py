import json
import math
from typing import Any

import pytest

from agent_tools.errors import InvalidParams
from agent_tools.limits import MIB, Limits
from agent_tools.sandbox.options import timeout_of
from agent_tools.tools.params import MAX_JSON5_PARTS, code_of, load_json

LIMITS = Limits()
CODE_WITH_A_FENCE_IN_A_STRING = 'text = """\n```python\nprint(1)\n```\n"""\nprint(text)\n'


@pytest.mark.parametrize(
    ("params", "code"),
    [
        pytest.param('{"code": "print(1)"}', "print(1)", id="JSON"),
        pytest.param(' \n{"code": "print(1)"}\n ', "print(1)", id="JSON in white space"),
        pytest.param('{"code": "a\\nb"}', "a\nb", id="JSON with an escaped newline"),
        pytest.param('{"code": "a\nb"}', "a\nb", id="JSON with a raw newline"),
        pytest.param('{"code": "x", "timeout": 3}', "x", id="JSON with more keys"),
        pytest.param('{"code": ""}', "", id="JSON with empty code"),
        pytest.param("{'code': 'print(1)'}", "print(1)", id="JSON5 single quotes"),
        pytest.param("{code: 'print(1)',}", "print(1)", id="JSON5 bare key and trailing comma"),
        pytest.param(json.dumps(json.dumps({"code": "print('a')"})), "print('a')", id="JSON encoded twice"),
        pytest.param('"{code}".format(code=1)', '"{code}".format(code=1)', id="raw code that begins as a text"),
        pytest.param('"{\\"a\\": 1}"', '"{\\"a\\": 1}"', id="a text that holds another object"),
        pytest.param({"code": "print(1)"}, "print(1)", id="dict"),
        pytest.param(
            {"code": '```\n{"code": "x"}\n```'}, '```\n{"code": "x"}\n```', id="a dict's code is taken as it is"
        ),
        pytest.param("```python\nprint(1)\n```", "print(1)", id="fenced"),
        pytest.param("```\nprint(1)\n```", "print(1)", id="fenced without a language"),
        pytest.param("```py\nprint(1)\n```\n", "print(1)", id="fenced, newline after"),
        pytest.param("````\nprint('```')\n```\n````", "print('```')\n```", id="longer fence around a shorter one"),
        pytest.param("```python\nprint(1)\n", "print(1)", id="unclosed fence"),
        pytest.param("Here it is:\n\n```python\nprint(1)\n```\nThanks.", "print(1)", id="prose around a fence"),
        pytest.param("```python\na\n```\nor\n```python\nb\n```", "a", id="the first of two fences"),
        pytest.param('```json\n{"code": "print(1)"}\n```', "print(1)", id="fenced JSON"),
        pytest.param("print(1)", "print(1)", id="raw code"),
        pytest.param("if x:\n    y()\n", "if x:\n    y()\n", id="raw code keeps its white space"),
        pytest.param("print('```')", "print('```')", id="raw code with backticks in a line"),
        pytest.param("{1, 2}", "{1, 2}", id="raw code that is a set"),
        pytest.param("{x: y for x, y in z}", "{x: y for x, y in z}", id="raw code that is a dict comprehension"),
        pytest.param(
            CODE_WITH_A_FENCE_IN_A_STRING, CODE_WITH_A_FENCE_IN_A_STRING, id="fence in a triple-quoted string"
        ),
        pytest.param('\ufeff{"code": "print(1)"}', "print(1)", id="BOM before JSON"),
        pytest.param("\ufeffprint(1)", "print(1)", id="BOM before code"),
        pytest.param("\ufeff```\nprint(1)\n```", "print(1)", id="BOM before a fence"),
        pytest.param('{\r\n"code": "print(1)"\r\n}\r\n', "print(1)", id="CRLF JSON"),
        pytest.param("", "", id="empty text"),
        pytest.param("😀 = '中文'", "😀 = '中文'", id="other scripts"),
    ],
)
def test_code_is_found_in(params: object, code: str) -> None:
    assert code_of(params, LIMITS) == code


@pytest.mark.parametrize(
    "params",
    [
        pytest.param("```python\r\nprint(1)\r\n```", id="nothing after"),
        pytest.param("```python\r\nprint(1)\r\n```\r\n", id="newline after"),
        pytest.param("Run:\r\n```python\r\nprint(1)\r\n```\r\nThanks.\r\n", id="prose around"),
    ],
)
def test_a_fence_with_crlf_line_ends_is_a_fence(params: str) -> None:
    assert code_of(params, LIMITS).strip() == "print(1)"


@pytest.mark.parametrize("params", ["[]", "null", '"x"', "5", "[1, 2]"])
def test_json_that_is_not_an_object_is_plain_code(params: str) -> None:
    assert code_of(params, LIMITS) == params


@pytest.mark.parametrize(
    ("params", "words"),
    [
        pytest.param({}, "no 'code'", id="empty dict"),
        pytest.param("{}", "no 'code'", id="empty object"),
        pytest.param('{"kode": 1}', "no 'code'", id="another key"),
        pytest.param('{"code": null}', "no 'code'", id="null"),
        pytest.param('{"code": 5}', "type int", id="a number"),
        pytest.param({"code": ["print(1)"]}, "type list", id="a list"),
        pytest.param({"code": b"print(1)"}, "type bytes", id="bytes in a dict"),
        pytest.param(None, "type NoneType", id="None"),
        pytest.param(["print(1)"], "type list", id="list"),
        pytest.param(b"print(1)", "type bytes", id="bytes"),
    ],
)
def test_params_without_code_are_refused(params: object, words: str) -> None:
    with pytest.raises(InvalidParams, match=words):
        code_of(params, LIMITS)


@pytest.mark.parametrize(
    "params",
    [
        pytest.param('{"code": "print(1)', id="cut off in the string"),
        pytest.param('{"code": "print(1)"', id="cut off before the brace"),
        pytest.param('{"code": "print("hi")"}', id="unescaped quotes"),
        pytest.param('{"code": "x"} and then some', id="prose after"),
        pytest.param("{'code': 'print(1)", id="cut off, single quotes"),
        pytest.param("{code: print(1)}", id="unquoted code"),
        pytest.param('{"code":\n```python\nprint(1)\n```\n}', id="fence as the value"),
        pytest.param('{"code": \ud800', id="lone surrogate where a value should be"),
        pytest.param('```json\n{"code": "print(1)\n```', id="fenced"),
    ],
)
def test_broken_json_that_claims_to_hold_code_is_refused(params: str) -> None:
    with pytest.raises(InvalidParams, match="looks like JSON") as caught:
        code_of(params, LIMITS)
    caught.value.message.encode()


@pytest.mark.parametrize(
    "params",
    [
        pytest.param('{"code":' + "[" * 10**6, id="open lists"),
        pytest.param('{"code":' * 10**6, id="open objects"),
        pytest.param("{'code':" + "[" * 10_000, id="JSON5"),
        pytest.param('{"a":' * 10**6, id="no claim of code, too long as code"),
        pytest.param({"code": json.loads("[" * 200 + "]" * 200)}, id="dict"),
    ],
)
def test_deep_nesting_is_refused(params: object) -> None:
    with pytest.raises(InvalidParams):
        code_of(params, LIMITS)


@pytest.mark.parametrize("wrap", [str, json.dumps, lambda code: {"code": code}], ids=["plain", "JSON", "dict"])
@pytest.mark.parametrize(
    ("code", "words"),
    [
        pytest.param("x = '\ud800'", "lone surrogate", id="lone surrogate"),
        pytest.param("x = '\0'", "NUL", id="NUL"),
        pytest.param("#" * (MIB + 1), "max_code_bytes", id="over 1 MiB"),
        pytest.param("é" * (MIB // 2 + 1), "max_code_bytes", id="over 1 MiB as UTF-8"),
    ],
)
def test_code_that_cannot_be_run_is_refused(wrap: Any, code: str, words: str) -> None:
    params = json.dumps({"code": code}) if wrap is json.dumps else wrap(code)
    with pytest.raises(InvalidParams, match=words) as caught:
        code_of(params, LIMITS)
    caught.value.message.encode()


def test_code_of_exactly_the_limit_is_taken() -> None:
    assert len(code_of("#" * MIB, LIMITS)) == MIB


@pytest.mark.parametrize(("timeout", "seconds"), [(5, 5.0), (0.5, 0.5), (None, 30.0), (86_400, 86_400.0)])
def test_a_usable_timeout(timeout: object, seconds: float) -> None:
    found = timeout_of(timeout, 30.0, LIMITS)
    assert found == seconds
    assert isinstance(found, float)


@pytest.mark.parametrize(
    "timeout",
    [
        0,
        -1,
        0.0,
        math.nan,
        math.inf,
        -math.inf,
        True,
        False,
        "5",
        [5],
        1e12,
        86_401,
        pytest.param(10**400, id="10**400"),
        pytest.param(10**5000, id="10**5000"),
    ],
)
def test_an_unusable_timeout_is_refused(timeout: object) -> None:
    with pytest.raises(InvalidParams, match="timeout"):
        timeout_of(timeout, 30.0, LIMITS)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param('{"a": [1]}', {"a": [1]}, id="JSON"),
        pytest.param("{a: 'b', /* why */}", {"a": "b"}, id="JSON5"),
        pytest.param('```json\n{"a": 1}\n```', {"a": 1}, id="fenced"),
        pytest.param("null", None, id="null"),
    ],
)
def test_load_json_reads_json_and_json5(text: str, value: object) -> None:
    assert load_json(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "print(1)", "{", "[" * 10**6, "{'a':" * 5000, "9" * 10_000],
    ids=["empty", "code", "brace", "deep JSON", "deep JSON5", "10,000 digits"],
)
def test_load_json_refuses_what_is_neither(text: str) -> None:
    with pytest.raises(ValueError):
        load_json(text)


def test_json5_of_many_parts_is_refused_since_its_parser_is_slow() -> None:
    few, many = ("{code: 'x', a: [" + "1," * count + "]}" for count in (MAX_JSON5_PARTS - 10, MAX_JSON5_PARTS))
    assert code_of(few, LIMITS) == "x"
    with pytest.raises(InvalidParams, match="cannot be parsed"):
        code_of(many, LIMITS)
