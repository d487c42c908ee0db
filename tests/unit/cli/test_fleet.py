"""`agent-tools fleet` where Ray is not installed; scripts/try integrations ray has it with a cluster."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from agent_tools.cli import cli
from agent_tools.extras import pip_install


@pytest.mark.parametrize("command", ["status", "up", "down"])
def test_without_ray_the_extra_is_named(command: str) -> None:
    done = CliRunner().invoke(cli, ["fleet", command])
    assert done.exit_code == 1
    assert pip_install("ray") in done.output
