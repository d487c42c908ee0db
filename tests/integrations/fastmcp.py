"""FastMCP: its client lists, checks and reads the skills of our MCP server. It has its own rules for both."""

from __future__ import annotations

import sys
from pathlib import Path

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from fastmcp.skills.client import SkillsClientExtension

from tests.skills import skill_folder


async def test_its_client_reads_every_skill_that_keeps_its_rules(tmp_path: Path) -> None:
    skill_folder(tmp_path / "skills" / "m", {"scripts/a b#.py": "print(1)"}).joinpath("a.png").write_bytes(
        b"\x89PNG\xff"
    )
    skill_folder(tmp_path / "skills" / "long", description="d" * 1_025)
    arguments = ["-m", "agent_tools", "mcp", "--skills", str(tmp_path / "skills")]
    transport = StdioTransport(sys.executable, [*arguments, "--set", f"data_dir={tmp_path / 'data'}"])
    async with Client(transport, extensions=[SkillsClientExtension()]) as client:
        (skill,) = await client.list_skills()
        assert (await client.get_skill(skill.uri)) == skill
        assert skill.frontmatter.name == "m"
        assert {each.uri.rpartition("/")[2] for each in skill.resources} == {"SKILL.md", "a%20b%23.py", "a.png"}
        read = await client.read_skill(skill.uri)  # which checks digests, sizes and frontmatter
        assert {path: len(data) for path, data in read.files.items()}["scripts/a b#.py"] == 8
