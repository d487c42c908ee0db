"""Configurations of other programs start this installation, and nothing that lies in the folder they start it in."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent_tools.cli import cli
from agent_tools.jupyter.kernelspec import KernelSpec


def printed(*arguments: str) -> str:
    shown = CliRunner().invoke(cli, arguments)
    assert shown.exit_code == 0, shown.output
    return shown.stdout


def of_mcp() -> list[str]:
    (server,) = json.loads(printed("mcp", "config", "claude-desktop"))["mcpServers"].values()
    return [server["command"], *server["args"]]


def of_codex() -> list[str]:
    (environment,) = tomllib.loads(printed("codex", "config"))["environments"]
    return [environment["program"], *environment["args"]]


def of_jupyter() -> list[str]:
    return list(KernelSpec().content()["argv"])


@pytest.mark.parametrize("configured", [of_mcp, of_codex, of_jupyter])
def test_modules_that_code_has_left_in_the_project_do_not_run_on_the_host(
    configured: Callable[[], list[str]], tmp_path: Path
) -> None:
    for name in ("agent_tools/__init__", "agent_tools/__main__", "json", "click", "asyncio", "sitecustomize"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text("raise SystemExit('code of the project ran')")
    done = subprocess.run([*configured(), "--help"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "Usage:" in done.stdout) == (0, True), done.stderr
