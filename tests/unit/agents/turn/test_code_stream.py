import itertools
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.agents.turn.code_stream import CodeStream


def stream(text: str, code: str, size: int = 1) -> tuple[str, str]:
    """(the code given while it was written, what the end added)."""
    reader = CodeStream()
    pieces = [reader.feed(text[n : n + size]) for n in range(0, len(text), size)]
    return "".join(pieces), reader.finish(code)


CODES = ["print(1)", "", 'a = "b\\n"\n', "é😀 中\t\u0000", '{"code": "x"}', "x\\", "\r\n'''\"", "\ud83d alone"]


@pytest.mark.parametrize("code", CODES)
def test_json_gives_the_code_while_it_is_written(code: str) -> None:
    ways = list(itertools.product((True, False), (1, 2, 3, 1000)))
    given_ = {way: stream(json.dumps({"code": code}, ensure_ascii=way[0]), code, way[1]) for way in ways}
    assert {way: code.startswith(shown) and shown + rest for way, (shown, rest) in given_.items()} == dict.fromkeys(
        ways, code
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"timeout": 5, "code": "x"}',
        '{"a": {"code": "no"}, "b": ["code", ":", "no"], "code": "x", "z": {}}',
        ' {"a": "code", "code" : "x" , "b": 1}',
        '{"\\u0063ode": "x"}',
        '{"a": "}{\\"", "code": "x"}',
    ],
)
def test_the_code_is_the_one_at_the_top(text: str) -> None:
    assert json.loads(text)["code"] == "x"
    assert {size: stream(text, "x", size) for size in (1, 1000)} == {1: ("x", ""), 1000: ("x", "")}


@pytest.mark.parametrize(
    ("text", "code", "shown"),
    [
        ("print(1)\nprint(2)", "print(1)\nprint(2)", "print(1)\nprint(2)"),
        ("```python\nprint(1)\n```", "print(1)", ""),
        ("{'code': 'x'}", "x", ""),
        ("<parameter=code>\nprint(1)\n</parameter>", "print(1)", ""),
        ("{x for x in y}", "{x for x in y}", ""),
        ('{"code": 3}', "", ""),
        ('{"code"', "", ""),
        ("", "", ""),
    ],
)
def test_other_arguments(text: str, code: str, shown: str) -> None:
    given_, rest = stream(text, code)
    assert given_ == shown
    assert given_ + rest == code


@pytest.mark.parametrize(
    ("text", "code"),
    [("print(1)\n```", "print(1)"), ("print(1)\\nprint(2)", "print(1)\nprint(2)"), ("x = 1\n\n`", "x = 1\n\n`")],
)
@pytest.mark.parametrize("is_json", [True, False])
def test_code_that_a_repair_changes_is_not_shown_before(text: str, code: str, is_json: bool) -> None:
    for size in (1, 3, 1000):
        assert "".join(stream(json.dumps({"code": text}) if is_json else text, code, size)) == code


def test_broken_escapes_end_it() -> None:
    assert stream('{"code": "a\\qb"}', "other")[0] == "a"


def test_what_comes_at_the_end_continues_what_was_given() -> None:
    reader = CodeStream()
    assert reader.feed('{"code": "ab') == "ab"
    assert reader.finish("abc") == "c"
    assert reader.finish("xyz") == ""


@given(st.text(), st.booleans(), st.lists(st.integers(1, 9)))
def test_any_code_in_any_pieces(code: str, is_ascii: bool, sizes: list[int]) -> None:
    text = json.dumps({"n": 1, "code": code}, ensure_ascii=is_ascii)
    reader, shown = CodeStream(), ""
    for size in [*sizes, len(text)]:
        shown += reader.feed(text[:size])
        assert code.startswith(shown)
        text = text[size:]
    assert shown + reader.finish(code) == code


@given(st.text('{}[]":,\\ucode1 \n'))
def test_any_text_can_be_fed(text: str) -> None:
    stream(text, text)


def test_the_work_is_linear() -> None:
    text = json.dumps({"code": "print('é')\n" * 20_000})
    started = time.monotonic()
    assert "".join(stream(text, json.loads(text)["code"], 4)) == json.loads(text)["code"]
    assert time.monotonic() - started < 10  # measured: 1.6 s for 340 kB; quadratic work takes minutes
