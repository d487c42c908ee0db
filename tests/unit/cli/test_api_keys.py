"""--api-key takes keys, and files with keys. Commands run in their group: click keeps the help options it had first."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from agent_tools.cli import cli

ASK = ["serve", "--upstream", "http://127.0.0.1:9/v1", "--print-settings"]


def test_keys_come_from_a_file_and_are_not_shown(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first-key-123\n\nshort\n")
    done = CliRunner().invoke(cli, [*ASK, "--api-key", f"@{keys}"])
    assert "API key 2 of 2 has fewer than 8 characters" in str(done.exception)
    keys.write_text("first-key-123\nsecond-key-123\n")
    done = CliRunner().invoke(cli, [*ASK, "--api-key", f"@{keys}", "--host", "0.0.0.0"])
    assert done.exit_code == 0
    assert "api_keys = (set)" in done.output
    assert "first-key" not in done.output


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, [*ASK, "--api-key", f"@{tmp_path}/none"])
    assert done.exit_code == 2
    assert f"{tmp_path}/none cannot be read" in done.output.replace("\n", " ").replace("  ", " ")


@pytest.mark.parametrize("command", ["serve", "mcp"])
def test_the_help_says_why_a_file_is_better(command: str) -> None:
    done = CliRunner().invoke(cli, [command, "--help"])
    assert "list of processes" in " ".join(done.output.split())
