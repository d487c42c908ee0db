"""The unit for systemd, read by systemd itself."""

from __future__ import annotations

import configparser
import math
import re
import subprocess
from pathlib import Path

from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.jobs import LAST_WORDS
from tests.deploy.conftest import debian_program

UNIT = Path(__file__).resolve().parents[2] / "deploy" / "agent-tools.service"


def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    program = debian_program("systemd-analyze", "systemd", "libsystemd-shared")
    text = UNIT.read_text().replace("/opt/agent-tools/bin/agent-tools", "/bin/true")
    (tmp_path / UNIT.name).write_text(text)
    for needed in ("docker.service", "network-online.target"):
        kind = "[Service]\nExecStart=/bin/true\n" if needed.endswith("service") else "[Unit]\nDescription=there\n"
        (tmp_path / needed).write_text(kind)
    done = subprocess.run(
        [program, "verify", "--man=no", "--recursive-errors=one", str(tmp_path / UNIT.name)],
        env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_it_has_the_time_to_stop_in_that_the_gateway_takes() -> None:
    config, unit = GatewayConfig("http://u/v1"), configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text())
    takes = math.ceil(config.shutdown_grace + LAST_WORDS) + 1 + config.park_timeout
    assert int(re.sub("s$", "", unit["Service"]["TimeoutStopSec"])) > takes
    assert unit["Service"]["Type"] == "notify"
