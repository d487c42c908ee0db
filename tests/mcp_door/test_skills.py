"""Skills as resources (SEP-2640), asked for by the raw methods of the protocol."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_types import Request, RequestParams, Result, TextResourceContents

from agent_tools.limits import MIB
from agent_tools.mcp.skills import EXTENSION
from tests.mcp_door.conftest import Converse
from tests.skills import skill_folder

ODD = b"\xef\xbb\xbfa\r\nb\0"
PICTURE = b"\x89PNG\xff"
BREAKING = {
    "long": "name: long\ndescription: " + "d" * 1_025,
    "dated": "name: dated\ndescription: d\nmetadata:\n  at: 2026-01-01",
    "numbered": "name: numbered\ndescription: d\nmetadata:\n  1: x",
    "endless": "name: endless\ndescription: d\nmetadata:\n  x: .inf",
    "licensed": "name: licensed\ndescription: d\nlicense: 5",
    "listed": "name: listed\ndescription: d\nmetadata: [a]",
    "needy": "name: needy\ndescription: d\ncompatibility: " + "c" * 501,
}


class Params(RequestParams, extra="allow"):
    pass


class Anything(Result, extra="allow"):
    pass


async def ask(client: Client, method: str, **params: str) -> dict[str, Any]:
    request = Request[Params, str](method=method, params=Params.model_validate(params))
    return (await client.session.send_request(request, Anything)).model_dump(by_alias=True)


async def get(client: Client, uri: str) -> Any:
    return (await ask(client, "skills/get", uri=uri))["skill"]


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    folder = skill_folder(tmp_path / "skills" / "m", {"scripts/a b#.py": "print(1)"})
    (folder / "odd.txt").write_bytes(ODD)
    (folder / "a.png").write_bytes(PICTURE)
    os.truncate(skill_folder(tmp_path / "skills" / "large", {"a": ""}) / "a", 17 * MIB)
    for name, front in BREAKING.items():
        (tmp_path / "skills" / name).mkdir()
        (tmp_path / "skills" / name / "SKILL.md").write_text(f"---\n{front}\n---\n")
    return tmp_path / "skills"


def test_skills_are_listed_with_digests_of_what_is_read(converse: Converse, skills: Path, tmp_path: Path) -> None:
    async def talk(client: Client) -> None:
        assert EXTENSION in (client.server_capabilities.extensions or {})
        listed = await ask(client, "skills/list")
        assert (listed["resultType"], listed["cacheScope"]) == ("complete", "private")
        (skill,) = listed["skills"]
        assert skill["uri"] == "skill://m/SKILL.md"
        assert skill["frontmatter"] == {"name": "m", "description": "Does things."}
        assert await get(client, skill["uri"]) == skill
        read = {}
        for each in skill["resources"]:
            (content,) = (await client.read_resource(each["uri"])).contents
            is_text = isinstance(content, TextResourceContents)
            data = content.text.encode() if is_text else base64.b64decode(content.blob)
            assert each["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
            assert each["size"] == len(data)
            read[each["uri"].removeprefix("skill://m/")] = (data, is_text)
        assert read["odd.txt"] == (ODD, True)
        assert read["a.png"] == (PICTURE, False)
        assert read["scripts/a%20b%23.py"] == (b"print(1)", True)

    converse(talk, data_dir=tmp_path / "data", skills=(str(skills),))


@pytest.mark.parametrize("uri", ["skill://m/../m/SKILL.md", "skill://m/x", "skill://n/SKILL.md", "skill:///etc/passwd"])
def test_what_is_no_file_of_a_skill_is_not_read(converse: Converse, skills: Path, tmp_path: Path, uri: str) -> None:
    async def talk(client: Client) -> None:
        with pytest.raises(MCPError):
            await client.read_resource(uri)
        with pytest.raises(MCPError, match="There is no skill"):
            await get(client, uri)

    converse(talk, data_dir=tmp_path / "data", skills=(str(skills),))


def test_a_server_without_skills_has_no_such_methods(converse: Converse, tmp_path: Path) -> None:
    async def talk(client: Client) -> None:
        assert EXTENSION not in (client.server_capabilities.extensions or {})
        with pytest.raises(MCPError, match="Method not found"):
            await get(client, "skill://m/SKILL.md")

    converse(talk, data_dir=tmp_path / "data")
