"""The text that tells a model which skills there are, and where it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent_tools.cli import cli
from agent_tools.containers.spec import usual_cfg
from agent_tools.errors import InvalidParams
from agent_tools.gateway.config import GatewayConfig
from agent_tools.sandbox import Sandbox
from agent_tools.skills.skill import Skill, with_catalogue, without_catalogue
from agent_tools.tools.code_interpreter import CodeInterpreter
from tests.skills import skill_folder


def skill(name: str = "pdf", description: str = "Reads PDFs.", compatibility: str = "") -> Skill:
    return Skill(name, description, compatibility, folder=Path("/srv/skills") / name)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of this process, for its shelf."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_the_catalogue_has_a_line_for_each_skill() -> None:
    lines = with_catalogue("Runs code.", [skill(), skill("docx", "d" * 2_000, "n" * 300)]).splitlines()
    assert lines[3] == "- pdf: Reads PDFs. (/skills/pdf/SKILL.md)"
    assert lines[4] == f"- docx: {'d' * 1_023}… [{'n' * 199}…] (/skills/docx/SKILL.md)"
    assert len(lines[2]) < 330


def test_without_skills_a_description_stays_as_it_is() -> None:
    assert with_catalogue("Runs code.", []) == without_catalogue("Runs code.", []) == "Runs code."
    assert without_catalogue(with_catalogue("Runs code.", [skill()]), [skill()]) == "Runs code."


def test_the_tool_names_its_skills_at_the_end_of_its_description(tmp_path: Path, state: Path) -> None:
    folder = skill_folder(tmp_path / "m")
    end = "- m: Does things. (/skills/m/SKILL.md)"
    with CodeInterpreter(skills=[str(folder)]) as tool:
        assert tool.description.startswith(CodeInterpreter.description)
        assert tool.description.endswith(end)
        described = tool.definition["description"]
        assert described.endswith(end)
        assert described.count(end) == 1
        assert "CPython" in described or "Python 3" in described
    assert CodeInterpreter().description == CodeInterpreter.description


def test_a_sandbox_has_its_skills_and_names_their_folders_in_its_configuration(tmp_path: Path, state: Path) -> None:
    folder = skill_folder(tmp_path / "m")
    sandbox = Sandbox(skills=[folder])
    assert [(each.name, each.path) for each in sandbox.skills] == [("m", "/skills/m")]
    assert sandbox.to_config() == {"skills": [str(folder)]}
    assert Sandbox(skills=sandbox.skills).to_config() == {"skills": [str(sandbox.skills[0].folder)]}
    assert Sandbox.from_config(Sandbox(skills=sandbox.skills).to_config()).skills == sandbox.skills
    assert sandbox.skills[0].folder.is_relative_to(state)


@pytest.mark.parametrize("given", ["~/skills", [1], {"a": "b"}, 5])
def test_skills_that_are_no_list_of_folders_are_an_error(given: object) -> None:
    with pytest.raises(InvalidParams, match="give a list of folders"):
        Sandbox({"skills": given})


def test_a_process_without_skills_does_not_load_yaml() -> None:
    code = "import sys; from agent_tools import CodeInterpreter; CodeInterpreter(); sys.exit('yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_operators_skills_are_in_every_container(tmp_path: Path) -> None:
    skill_folder(tmp_path / "skills" / "m")
    config = GatewayConfig(data_dir=tmp_path / "data", skills=(str(tmp_path / "skills"),), upstream="http://x.test/v1")
    (known,) = config.known_skills
    assert known.folder.is_relative_to(tmp_path / "data" / "skills")
    assert Sandbox(usual_cfg(config, tmp_path)).skills == (known,)
    assert "skills" not in usual_cfg(GatewayConfig(data_dir=tmp_path / "data", upstream="http://x.test/v1"), tmp_path)
    with pytest.raises(InvalidParams, match="cannot be read"):
        GatewayConfig(data_dir=tmp_path / "data", skills=(str(tmp_path / "none"),), upstream="http://x.test/v1")


def test_the_check_lists_imports_and_fails_for_an_unusable_skill(tmp_path: Path) -> None:
    source = "import os, numpy.linalg\nfrom helper import x\nfrom . import y"
    skill_folder(tmp_path / "m", {"scripts/a.py": source, "scripts/helper.py": "", "scripts/old.py": "print 1"})
    result = CliRunner().invoke(cli, ["skills", "check", str(tmp_path)])
    assert result.exit_code == 0
    assert result.output.startswith("m: 4 files, ")
    assert result.output.endswith("\n  imports: numpy\n")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "SKILL.md").touch()
    result = CliRunner().invoke(cli, ["skills", "check", str(tmp_path)])
    assert result.exit_code == 1
    assert "not usable. SKILL.md does not begin with frontmatter" in result.output


def test_the_command_line_hands_on_whole_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    skill_folder(tmp_path / "m")
    result = CliRunner().invoke(cli, ["mcp", "--skills", "m", "config", "cursor"])
    assert f'"{tmp_path / "m"}"' in result.output
