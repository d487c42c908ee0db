"""The list of tools and resources, as clients read it before any call."""

from __future__ import annotations

from pathlib import Path

import pytest
from mcp import Client, MCPError
from mcp.client.extension import advertise

from agent_tools.mcp.apps import EXTENSION, MIME, PAGE
from agent_tools.mcp.tools import TOOLS
from tests.mcp_door.conftest import Converse
from tests.skills import skill_folder

ALL = ("run_python", "wait", "run_command", "put_file", "get_file", "list_files", "restart", "close")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_every_tool_has_schemas_hints_and_words(converse: Converse, mode: str) -> None:
    from jsonschema import Draft202012Validator  # here, since every worker would pay its grammars

    async def talk(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tuple(tools) == ALL == tuple(name for name, tool in TOOLS.items() if not tool.is_for_page)
        pages = {name: tool.meta["ui"] for name, tool in tools.items() if tool.meta}
        assert pages == {key: {"resourceUri": PAGE} for key in ("run_python", "wait", "run_command")}
        for tool in tools.values():
            assert tool.title
            assert tool.description
            assert tool.annotations
            Draft202012Validator.check_schema(tool.input_schema)
            Draft202012Validator.check_schema(tool.output_schema or {})
            assert "$defs" not in tool.input_schema, "clients of some models do not read references"
            assert "anyOf" not in f"{tool.input_schema}{tool.output_schema}"
            assert tool.annotations.open_world_hint is False
        assert tools["run_python"].annotations.destructive_hint is False
        assert tools["close"].annotations.destructive_hint is True
        assert tools["get_file"].annotations.read_only_hint is True
        assert "There is no network access." in tools["run_python"].description
        assert "pandas" in tools["run_python"].description

    converse(talk, mode)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_answers_are_the_same_for_clients_that_show_the_page(converse: Converse, mode: str) -> None:
    told = []

    async def talk(client: Client) -> None:
        answer = await client.call_tool("run_python", {"code": "print('a'); open('b', 'w').close(); 7"})
        files = await client.list_resources()
        told.append(f"{answer}{files}".replace(str(answer.structured_content["duration"]), ""))
        told[-1] = told[-1].replace(answer.structured_content["container"], "")

    for extensions in ((), (advertise(EXTENSION, {"mimeTypes": [MIME]}),)):
        converse(talk, mode, extensions=extensions)
    assert told[0] == told[1]


def test_a_client_that_shows_the_page_has_a_tool_for_it_that_no_model_sees(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        *others, last = (await client.list_tools()).tools
        assert tuple(tool.name for tool in others) == ALL
        assert (last.name, last.meta) == ("get_outputs", {"ui": {"visibility": ["app"]}})
        ran = (await client.call_tool("run_python", {"code": "print('a'); 7"})).structured_content
        given = {"container": ran["container"], "code": "print('a'); 7"}
        found = (await client.call_tool("get_outputs", given)).structured_content
        assert found["outputs"] == [{"kind": "stdout", "text": "a\n"}, {"kind": "result", "text": "7"}]

    converse(talk, extensions=(advertise(EXTENSION, {"mimeTypes": [MIME]}),))


def test_the_page_is_offered_to_nobody_where_it_is_turned_off(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        tools = (await client.list_tools()).tools
        assert tuple(tool.name for tool in tools) == ALL
        assert [tool.meta for tool in tools] == [None] * len(ALL)
        with pytest.raises(MCPError, match="is not a file here"):
            await client.read_resource(PAGE)
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("get_outputs", {})

    converse(talk, apps=False, extensions=(advertise(EXTENSION, {"mimeTypes": [MIME]}),))


def test_a_network_by_list_is_told_and_makes_the_world_open(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        tool = (await client.list_tools()).tools[0]
        assert "only these hosts can be reached: pypi, api.example.com." in tool.description
        assert tool.annotations.open_world_hint is True

    converse(talk, allowed_domains="pypi, api.example.com")


def test_the_template_of_resources_is_told_and_no_handle_of_others(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        (template,) = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "sandbox://{container}/{+path}"
        await client.call_tool("put_file", {"path": "a", "content": "a"})
        assert (await client.list_resources()).resources == []

    converse(talk, is_alone=False)


def test_an_unknown_tool_is_an_error_of_the_protocol(converse: Converse) -> None:
    async def talk(client: Client) -> None:
        with pytest.raises(MCPError, match="Unknown tool: nothing"):
            await client.call_tool("nothing", {})

    converse(talk)


def test_tools_that_can_read_skills_name_them(converse: Converse, tmp_path: Path) -> None:
    async def talk(client: Client) -> None:
        tools = {tool.name: tool.description or "" for tool in (await client.list_tools()).tools}
        named = {name for name, text in tools.items() if text.endswith("- m: Does things. (/skills/m/SKILL.md)")}
        assert named == {"run_python", "run_command"}

    converse(talk, data_dir=tmp_path / "data", skills=(str(skill_folder(tmp_path / "m")),))
