"""`agent-tools fleet` where Ray is not installed; scripts/integrations ray has it with a cluster."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from agent_tools.cli.fleet import fleet
from agent_tools.errors import EngineUnavailable


@pytest.mark.parametrize("command", ["status", "up", "down"])
def test_without_ray_the_extra_is_named(command: str) -> None:
    done = CliRunner().invoke(fleet, [command])
    assert isinstance(done.exception, EngineUnavailable)
    assert "agent-tools-sandbox[ray]" in str(done.exception)


def test_hosts_per_node_is_bounded() -> None:
    done = CliRunner().invoke(fleet, ["up", "--hosts-per-node", "0"])
    assert done.exit_code == 2
    assert "1<=x<=16" in done.output
