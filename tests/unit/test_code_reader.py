"""What is read of the code and the arguments that models write, and what is said of it."""

from __future__ import annotations

import ast
import asyncio
import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import IPython
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent_tools import AsyncSandbox, CodeInterpreter, Sandbox
from agent_tools.code_reader import Reading, read_code, read_params
from agent_tools.errors import InvalidParams, ToolServiceError, UnclearCode
from agent_tools.json_reader import MAX_JSON5_PARTS, load_json
from agent_tools.limits import MIB, Limits
from agent_tools.python_scanner import is_sound
from agent_tools.results.execution import Error
from agent_tools.sandbox.options import timeout_of
from tests.written_code import ARGUMENTS, REFUSED, TEXTS, RecordingRuntime, Written, arguments

LIMITS = Limits()
CODE_WITH_A_FENCE_IN_A_STRING = 'text = """\n```python\nprint(1)\n```\n"""\nprint(text)\n'


def code_in(params: object, limits: Limits) -> str:
    return read_params(params, limits).code


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
        pytest.param('{"properties": {"code": "print(1)"}}', "print(1)", id="the schema around it"),
        pytest.param('{"code": {"type": "string", "value": "print(1)"}}', "print(1)", id="the schema with a value"),
        pytest.param('{\\"code\\": \\"print(1)\\"}', "print(1)", id="JSON escaped without quotes around it"),
        pytest.param({"code": '{"code": "x"}'}, '{"code": "x"}', id="a dict's code is no JSON"),
        pytest.param("```python\nprint(1)\n```", "print(1)", id="fenced"),
        pytest.param("```\nprint(1)\n```", "print(1)", id="fenced without a language"),
        pytest.param("```py\nprint(1)\n```\n", "print(1)", id="fenced, newline after"),
        pytest.param("````\nprint('```')\n```\n````", "print('```')\n```", id="longer fence around a shorter one"),
        pytest.param("```python\nprint(1)\n", "print(1)", id="unclosed fence"),
        pytest.param("Here it is:\n\n```python\nprint(1)\n```\nThanks.", "print(1)", id="prose around a fence"),
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
    assert code_in(params, LIMITS) == code


@pytest.mark.parametrize(
    "params",
    [
        pytest.param("```python\r\nprint(1)\r\n```", id="nothing after"),
        pytest.param("```python\r\nprint(1)\r\n```\r\n", id="newline after"),
        pytest.param("Run:\r\n```python\r\nprint(1)\r\n```\r\nThanks.\r\n", id="prose around"),
    ],
)
def test_a_fence_with_crlf_line_ends_is_a_fence(params: str) -> None:
    assert code_in(params, LIMITS).strip() == "print(1)"


@pytest.mark.parametrize(
    "params",
    [
        *(f'{{"{key}": "print(1)"}}' for key in ("script", "source", "python_code", "input", "Code")),
        '{"arguments": {"code": "print(1)"}}',
        '{"code": {"content": "print(1)"}}',
        '{"code": ["print(1)"]}',
        '[{"code": "print(1)"}]',
        '"print(1)"',
    ],
)
def test_code_in_another_place_runs_with_a_note(params: str) -> None:
    reading = read_params(params, LIMITS)
    assert reading.code == "print(1)"
    assert bool(reading.notes) is not params.startswith("[{"), "an array of one object is only a wrapper"


@pytest.mark.parametrize(
    "params", ['{"script": "a", "source": "b"}', '{"arguments": {"x": "a"}}', '{"code": [1, "a"]}']
)
def test_code_that_could_be_in_several_places_or_in_none_is_not_run(params: str) -> None:
    with pytest.raises(InvalidParams):
        read_params(params, LIMITS)


@pytest.mark.parametrize("params", ["[]", "null", '"x"', "5", "[1, 2]"])
def test_json_that_is_not_an_object_is_plain_code(params: str) -> None:
    assert code_in(params, LIMITS) == params


@pytest.mark.parametrize(
    ("params", "words"),
    [
        pytest.param({}, "no 'code'", id="empty dict"),
        pytest.param("{}", "no 'code'", id="empty object"),
        pytest.param('{"kode": 1}', "no 'code'", id="another key"),
        pytest.param('{"code": null}', "no 'code'", id="null"),
        pytest.param('{"code": 5}', "type int", id="a number"),
        pytest.param({"code": [1]}, "type list", id="a list"),
        pytest.param({"code": b"print(1)"}, "type bytes", id="bytes in a dict"),
        pytest.param(None, "type NoneType", id="None"),
        pytest.param(["print(1)"], "type list", id="list"),
        pytest.param(b"print(1)", "type bytes", id="bytes"),
    ],
)
def test_params_without_code_are_refused(params: object, words: str) -> None:
    with pytest.raises(InvalidParams, match=words):
        code_in(params, LIMITS)


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
        code_in(params, LIMITS)
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
        code_in(params, LIMITS)


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
        code_in(params, LIMITS)
    caught.value.message.encode()


def test_code_of_exactly_the_limit_is_taken() -> None:
    assert len(code_in("#" * MIB, LIMITS)) == MIB


@pytest.mark.parametrize(("timeout", "seconds"), [(5, 5.0), (0.5, 0.5), (None, 30.0), (86_400, 86_400.0)])
def test_a_usable_timeout(timeout: object, seconds: float) -> None:
    found = timeout_of(timeout, 30.0)
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
        timeout_of(timeout, 30.0)


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
    assert code_in(few, LIMITS) == "x"
    with pytest.raises(InvalidParams, match="cannot be parsed"):
        code_in(many, LIMITS)


# -- the table of what models write, at every door --------------------------------------------------------------------


def read(params: object) -> Reading | None:
    try:
        return read_params(params, LIMITS)
    except InvalidParams:
        return None


def wrong(table: Iterable[Written], read: Callable[[Any], Reading | None]) -> list[tuple[object, Reading | None]]:
    """Return what is read otherwise than the table has it, by its text."""
    readings = [(written, read(written.text)) for written in table]
    return [(written.text, reading) for written, reading in readings if not is_as_written(written, reading)]


def is_as_written(written: Written, reading: Reading | None) -> bool:
    notes = " ".join(reading.notes) if reading else ""
    is_noted = reading is None or (written.note in notes if written.note else not notes)
    return is_noted and (reading.code if reading else REFUSED) == written.code


def test_the_table_is_long() -> None:
    assert len(TEXTS) + len(ARGUMENTS) >= 150
    assert len({written.text for written in (*TEXTS, *ARGUMENTS)}) == len(TEXTS) + len(ARGUMENTS)


@pytest.mark.parametrize("wrap", [str, lambda text: {"code": text}, arguments], ids=["text", "dict", "JSON"])
def test_text_is_read_alike_as_it_is_and_in_arguments(wrap: Any) -> None:
    assert wrong(TEXTS, lambda text: read(wrap(text))) == []


def test_arguments_are_read() -> None:
    assert wrong(ARGUMENTS, read) == []


def test_code_alone_is_read_as_arguments_are() -> None:
    def read_alone(text: str) -> Reading | None:
        try:
            return read_code(text, LIMITS)
        except UnclearCode:
            return None

    assert wrong(TEXTS, read_alone) == []


@pytest.fixture
def runtime() -> Iterator[RecordingRuntime]:
    runtime = RecordingRuntime()
    yield runtime
    runtime.close_all()


def test_the_tool_runs_what_is_read(runtime: RecordingRuntime) -> None:
    tool = CodeInterpreter(work_dir="fresh", runtime=runtime)
    for written in (*TEXTS, *ARGUMENTS):
        runtime.ran.clear()
        try:
            answer = tool.call(written.text)
        except ToolServiceError as exc:
            answer = exc.message
        is_run = written.code is not REFUSED and bool(written.code.strip())
        assert runtime.ran == ([written.code] if is_run else []), written.text
        assert not is_run or written.note in answer
        assert ("note:" in answer) == bool(written.note and is_run)
    tool.close()


def test_a_sandbox_and_the_adapters_run_what_is_read(runtime: RecordingRuntime) -> None:
    agents = pytest.importorskip("agents.tool_context")
    from agent_tools.integrations.openai_agents import code_interpreter_tool

    sandbox = AsyncSandbox(runtime=runtime)
    tool = code_interpreter_tool(sandbox)

    async def main() -> None:
        for written in TEXTS:
            runtime.ran.clear()
            context = agents.ToolContext(None, tool_name=tool.name, tool_call_id="c", tool_arguments="{}")
            shown = await tool.on_invoke_tool(context, arguments(written.text))
            assert runtime.ran == ([] if written.code is REFUSED else [written.code]), written.text
            answer = "".join(each.text for each in shown)
            assert ("UnclearCode: " in answer) == (written.code is REFUSED)
            assert written.note in answer
        await sandbox.close()

    asyncio.run(main())


def test_an_execution_has_the_notes(runtime: RecordingRuntime) -> None:
    with Sandbox(runtime=runtime) as sandbox:
        execution = sandbox.run_code("Do:\n```python\n1\n```")
        assert execution.notes == ("Not run: the text around the block of Python.",)
        refused = sandbox.run_code("```\n1\n```\n```\n2\n```")
        assert isinstance(refused.error, Error)
        assert "send one block" in refused.error.text
        assert runtime.ran == ["1"]


# -- plain Python is never altered ------------------------------------------------------------------------------------


def sources() -> list[str]:
    """Every few files of the standard library and of IPython, as long as their text is valid Python."""
    folders = [Path(ast.__file__).parent, Path(IPython.__file__).parent]
    paths = sorted(path for folder in folders for path in folder.glob("*.py"))[::5]
    return [path.read_text("utf-8") for path in paths if path.stat().st_size]


def test_the_source_of_libraries_is_never_altered() -> None:
    for source in sources():
        inside = source.strip("\n")
        assert is_sound(source)
        for params, code in (
            (source, source),
            ({"code": source}, source),
            (arguments(source), source),
            (f"```python\n{inside}\n```", inside),
            ({"code": f"```\n{inside}\n```\n"}, inside),
        ):
            assert read_params(params, Limits(max_code_bytes=MIB)).code == code


PYTHON_TEXT = st.text(st.sampled_from("ab \n\t`'\"\\#{}()[]:=%!?>.nrftu0é"), max_size=60)
STATEMENTS = st.one_of(
    PYTHON_TEXT.map(lambda text: f"x = {text!r}"),
    PYTHON_TEXT.map(lambda text: f"x = '''{text.replace(chr(92), '').replace(chr(39), '')}'''"),
    PYTHON_TEXT.map(
        lambda text: f'x = rf"""{text.replace(chr(92), "").translate(dict.fromkeys(map(ord, chr(34) + "{}")))}"""'
    ),
    PYTHON_TEXT.map(lambda text: "# " + text.replace("\n", " ")),
    st.sampled_from(["if x:\n    y = 1 % 2", "f(\n    a,\n    b != c,\n)", "x = 1 + \\\n    2", "f'{x!r:>{w}}'"]),
)
CODES = st.lists(STATEMENTS, min_size=1, max_size=5).map("\n".join)


@given(CODES)
def test_valid_python_comes_back_exactly_however_it_is_sent(code: str) -> None:
    assert is_sound(code)
    assert read_params(code, LIMITS).code == code
    assert read_params({"code": code}, LIMITS).code == code
    assert read_params(arguments(code), LIMITS).code == code
    assert read_params(json.dumps(arguments(code)), LIMITS).code == code
    for tag in ("python", "", "py"):
        assert read_params({"code": f"```{tag}\n{code}\n```"}, LIMITS) == Reading(code.rstrip("\n"))


LANGUAGES = st.sampled_from(["python", "python3", "py", "{python}", "ipython", ""])
BEHIND = st.one_of(st.text(st.sampled_from("ab1 =.()[]{}:'\"#%!@,-+/"), max_size=20), CODES.map(lambda code: code[:30]))


@example("python", "", ".1", [])
@given(
    LANGUAGES, st.sampled_from(["", " ", ":"]), BEHIND, st.lists(st.sampled_from(["x = 1", "", "print(x)"]), max_size=3)
)
def test_each_line_of_a_fence_runs_or_is_named(language: str, space: str, behind: str, lines: list[str]) -> None:
    first = behind.partition("\n")[0].replace("`", "")
    try:
        reading = read_params({"code": "\n".join([f"```{language}{space}{first}", *lines, "```"])}, LIMITS)
    except InvalidParams:
        return
    notes = " ".join(reading.notes)
    for line in filter(None, (first.strip(), *lines)):
        assert line in reading.code or line in notes or repr(line)[1:-1] in notes
