"""A client that is killed in the middle of a call, for each framework: nothing of it is left."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integrations.left_behind import await_gone

NOT_AGAIN = ("--junit-xml", "-k", __file__)


def test_a_client_that_is_killed_in_the_middle_of_a_call_leaves_nothing(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    given = [each for each in request.config.invocation_params.args if not str(each).startswith(NOT_AGAIN)]
    command = [sys.executable, "-m", "pytest", *map(str, given), "--dies", "-m", "stops"]
    with open(tmp_path / "told", "w+") as told:
        client = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=told)
        assert client.wait() == -signal.SIGKILL, told.seek(0) or told.read()
    await_gone(client.pid)
