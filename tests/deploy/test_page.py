"""docs/deploy.md: its commands and its client run as they stand; the commands of docs/runbook.md are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent_tools.cli import cli
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import code, until
from tests.gateway.conftest import NewGateway
from tests.test_documents import run

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text()


def commands(page: str) -> list[list[str]]:
    return [
        shlex.split(line, comments=True)
        for block in re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        for line in block.replace("\\\n", "").splitlines()
        if line.startswith("agent-tools ")
    ]


COMMANDS = commands(PAGE)
RUNBOOK = commands((ROOT / "docs" / "runbook.md").read_text())


def test_there_are_commands() -> None:
    assert {command[1] for command in COMMANDS} == {"keys", "serve", "image"}
    assert {command[1] for command in RUNBOOK} == {"serve", "backup", "restore", "keys", "clean", "image"}


def test_the_commands_for_keys_and_the_client_run_as_they_stand(
    new_gateway: NewGateway, work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_TOOLS_GATEWAY_DATA_DIR", str(work_dir / "data"))
    printed = {}
    for _, *command in (each for each in COMMANDS if each[1] == "keys"):
        done = CliRunner().invoke(cli, command)
        assert done.exit_code == 0, done.output
        printed[tuple(command[1:3])] = done.stdout
    assert "max_requests_per_minute=60" in printed["list",]
    gateway = new_gateway({"the-model": [code("2 ** 64"), ScriptedReply("A lot.")]}, named_keys=True)
    monkeypatch.setenv("ALICES_KEY", printed["add", "alice"].strip())
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    until(lambda: [each for each in gateway.services.keys._callers.values() if each.name == "alice"])
    names = run(block.replace("http://127.0.0.1:8080", gateway.url))
    assert names["response"].output_text == "A lot."
    assert names["counted"].input_tokens > 10


@pytest.mark.parametrize("command", [*(each for each in COMMANDS if each[1] != "keys"), *RUNBOOK], ids=" ".join)
def test_the_options_of_the_others_are_there(command: list[str]) -> None:
    """They run in tests/deploy/test_compose.py, tests/docker/test_gateway.py and wherever an image is built."""
    done = CliRunner().invoke(cli, [*command[1:], "--help"])
    assert done.exit_code == 0, done.output


def test_files_it_names_are_there() -> None:
    named = set(re.findall(r"deploy/([\w.-]+)", PAGE)) - {""}
    there = {path.name for path in (ROOT / "deploy").iterdir()}
    assert named <= there
    assert there - named <= {
        "env.example",
        "kubernetes",
        "nginx-sso.conf",
        "open-webui.yaml",
    }  # the last three are on other pages
