"""Which containers are served by sandboxes made ahead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent_tools.containers.records import ContainerRecord
from agent_tools.containers.spec import sandbox_cfg, usual_cfg
from agent_tools.gateway.config import GatewayConfig
from agent_tools.limits import GIB
from agent_tools.sandbox.options import Options

CONFIG = GatewayConfig("http://u", pool=2, allowed_domains=("pypi",))
USUAL = ContainerRecord(
    id="c",
    owner="o",
    created_at=0.0,
    name="",
    last_active_at=0.0,
    idle_minutes=1.0,
    memory_limit=CONFIG.memory,
    network="",
    status="active",
    has_run=False,
    bytes=0,
)


def options(container: ContainerRecord, config: GatewayConfig = CONFIG) -> Options:
    return Options.read(sandbox_cfg(config, container, Path("/data/c"), 100 * GIB))


def test_the_usual_container_is_of_the_kind_that_is_kept_ready() -> None:
    assert options(USUAL) == Options.read(usual_cfg(CONFIG, Path("/data/c")))
    assert options(USUAL).ahead.size == 2
    assert options(USUAL).ahead.preload == CONFIG.preload


@pytest.mark.parametrize("other", [{"memory_limit": "4g"}, {"network": "pypi"}], ids=str)
def test_other_containers_start_their_own(other: dict[str, str]) -> None:
    assert options(replace(USUAL, **other)).ahead.size == 0  # type: ignore[arg-type]


def test_without_a_pool_nothing_is_preloaded() -> None:
    assert options(USUAL, GatewayConfig("http://u", pool=0)).ahead == Options.read({}).ahead
