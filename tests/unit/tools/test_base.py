import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_tools.errors import ToolServiceError
from agent_tools.tools import base
from agent_tools.tools.base import BaseTool, BaseToolWithFileAccess, is_tool_schema
from agent_tools.tools.registry import TOOL_REGISTRY, register_tool

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
LISTED = [
    {"name": "city", "type": "string", "description": "where", "required": True},
    {"name": "days", "type": "integer", "description": "how many"},
]


@pytest.fixture(autouse=True)
def restored_registry() -> Iterator[None]:
    before = dict(TOOL_REGISTRY)
    yield
    TOOL_REGISTRY.clear()
    TOOL_REGISTRY.update(before)


class Weather(BaseTool):
    name = "weather"
    description = "Tells the weather."
    parameters = SCHEMA

    def call(self, params: str | dict[str, Any], **kwargs: Any) -> Any:
        return self._verify_json_format_args(params, **kwargs)


class ListedWeather(Weather):
    parameters = LISTED


class Files(BaseToolWithFileAccess):
    name = "files"


def test_a_base_tool_cannot_be_made_without_call() -> None:
    with pytest.raises(TypeError, match="abstract"):
        BaseTool()  # type: ignore[abstract]


def test_a_tool_without_a_name_is_refused() -> None:
    class Nameless(Weather):
        name = ""

    with pytest.raises(ValueError, match=r"You must set Nameless\.name, either by @register_tool\(name=\.\.\.\)"):
        Nameless()


def test_a_registered_tool_has_its_name() -> None:
    @register_tool("forecast")
    class Forecast(Weather):
        name = ""

    assert Forecast().name == "forecast"
    assert TOOL_REGISTRY["forecast"] is Forecast


def test_the_module_offers_the_names_of_the_contract() -> None:
    assert set(base.__all__) == {
        "TOOL_REGISTRY",
        "BaseTool",
        "BaseToolWithFileAccess",
        "ToolServiceError",
        "register_tool",
    }


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param({}, id="empty"),
        pytest.param({**SCHEMA, "type": "array"}, id="not an object"),
        pytest.param({"type": "object", "required": []}, id="no properties"),
        pytest.param({**SCHEMA, "properties": []}, id="properties is a list"),
        pytest.param({"type": "object", "properties": {}}, id="no required"),
        pytest.param({**SCHEMA, "required": "city"}, id="required is text"),
        pytest.param({**SCHEMA, "required": ["town"]}, id="required names nothing"),
        pytest.param({**SCHEMA, "required": [{}]}, id="required holds an object"),
    ],
)
def test_a_schema_that_is_none_is_refused(parameters: dict[str, Any]) -> None:
    broken = type("Broken", (Weather,), {"parameters": parameters})
    message = r"^The parameters, when provided as a dict, must confirm to a valid openai-compatible JSON schema\.$"
    with pytest.raises(ValueError, match=message):
        broken()


@pytest.mark.parametrize(
    "function",
    [None, [], {}, {"name": "n", "parameters": SCHEMA}, {"name": "n", "description": "d", "parameters": LISTED}],
    ids=["None", "list", "empty", "no description", "listed parameters"],
)
def test_what_is_no_function_definition(function: object) -> None:
    assert not is_tool_schema(function)


def test_further_keys_of_json_schema_are_allowed() -> None:
    schema = {**SCHEMA, "additionalProperties": False}
    assert is_tool_schema({"name": "n", "description": "d", "parameters": schema})


def test_function_holds_name_description_and_parameters() -> None:
    assert Weather().function == {"name": "weather", "description": "Tells the weather.", "parameters": SCHEMA}


def test_name_for_human_is_the_name_unless_configured() -> None:
    assert Weather().name_for_human == "weather"
    assert Weather({"name_for_human": "Weather!"}).name_for_human == "Weather!"


def test_args_format_is_in_the_language_of_the_tool() -> None:
    chinese = type("Chinese", (Weather,), {"description": "天气"})
    assert Weather().args_format == "Format the arguments as a JSON object."
    assert chinese().args_format == "此工具的输入应为JSON对象。"


@pytest.mark.parametrize("given", ["Plain words.", ""])
def test_args_format_can_be_configured(given: str) -> None:
    assert Weather({"args_format": given}).args_format == given


def test_the_configuration_is_copied() -> None:
    cfg = {"args_format": "a"}
    tool = Weather(cfg)
    cfg["args_format"] = "b"
    assert tool.args_format == "a"
    assert Weather().cfg == {}


def test_only_tools_with_file_access_take_files(tmp_path: Path) -> None:
    assert not Weather().file_access
    assert Files({"work_dir": str(tmp_path)}).file_access


@pytest.mark.parametrize("kind", [Weather, ListedWeather])
@pytest.mark.parametrize(
    "params",
    [{"city": "Bern"}, '{"city": "Bern"}', "{city: 'Bern'}", '```json\n{"city": "Bern"}\n```'],
    ids=["dict", "JSON", "JSON5", "fenced"],
)
def test_arguments_are_parsed(kind: type[Weather], params: str | dict[str, Any]) -> None:
    assert kind().call(params) == {"city": "Bern"}


def test_strict_arguments_must_be_json() -> None:
    assert Weather().call('{"city": "Bern"}', strict_json=True) == {"city": "Bern"}
    with pytest.raises(ValueError, match=r"^Parameters must be formatted as a valid JSON!$"):
        Weather().call("{city: 'Bern'}", strict_json=True)


@pytest.mark.parametrize("strict_json", [True, False])
@pytest.mark.parametrize(
    "params", ["Bern", "", "[]", "null", "[" * 10**6], ids=["word", "empty", "list", "null", "deep"]
)
def test_arguments_that_are_no_object_are_refused(params: str, strict_json: bool) -> None:
    with pytest.raises(ValueError, match=r"^Parameters must be formatted as a valid JSON!$"):
        Weather().call(params, strict_json=strict_json)


def test_a_missing_argument_of_listed_parameters_is_named() -> None:
    with pytest.raises(ValueError, match=r"^Parameters city is required!$"):
        ListedWeather().call({"days": 3})


@pytest.mark.parametrize(
    "params", [{}, {"city": 5}, {"city": "Bern", "days": "three"}], ids=["missing", "type", "days"]
)
def test_arguments_must_fit_the_schema(params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"city|days"):
        Weather().call(params)


def test_defaults_of_the_schema_are_not_filled_in() -> None:
    properties = {"city": {"type": "string", "default": "Bern"}}
    tool = type("Tool", (Weather,), {"parameters": {"type": "object", "properties": properties, "required": []}})
    assert tool().call({}) == {}


def test_work_dir_is_under_the_default_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEFAULT_WORKSPACE", "/spaces")
    assert Files().work_dir == "/spaces/tools/files"
    assert Files({"work_dir": "/mine"}).work_dir == "/mine"


def test_files_are_brought_into_work_dir(tmp_path: Path) -> None:
    source, work_dir = tmp_path / "a.csv", tmp_path / "work"
    source.write_text("1,2\n")
    assert Files({"work_dir": str(work_dir)}).call({}, files=[str(source)]) is None
    assert (work_dir / "a.csv").read_text() == "1,2\n"
    assert (work_dir / "a.csv").stat().st_uid == os.getuid()


def test_a_call_without_files_still_makes_work_dir(tmp_path: Path) -> None:
    Files({"work_dir": str(tmp_path / "work")}).call({})
    assert (tmp_path / "work").is_dir()


def test_a_file_that_cannot_be_had_is_an_error(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.csv")
    with pytest.raises(ToolServiceError) as caught:
        Files({"work_dir": str(tmp_path / "work")}).call({}, files=[missing])
    assert caught.value.code == "FileRejected"
    assert missing in caught.value.message
