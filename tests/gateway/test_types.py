"""All that the gateway sends is valid by the types of the `openai` package, from the lowest version to the newest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_tools.gateway.responses import LOWEST_CLIENT
from tests.gateway import valid
from tests.gateway.conftest import NewGateway
from tests.gateway.everything import Sent, everything
from tests.gateway.strict import check, check_event

OLDER = (LOWEST_CLIENT, "1.109.1", "3.0.0")
"""The lowest, the last of its kind, and one between; the newest is the one that is installed."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the folder that a version of the package is installed in, alone: what it needs is installed here."""
    base = tmp_path_factory.mktemp("versions")

    def installed(version: str) -> Path:
        folder = base / version
        if not folder.exists():
            command = [sys.executable, "-m", "uv", "pip", "install", "-q", "--no-deps", "--python", sys.executable]
            subprocess.run([*command, "--target", str(folder), f"openai=={version}"], check=True, timeout=120)
        return folder

    return installed


@pytest.fixture
def sent(new_gateway: NewGateway) -> list[Sent]:
    return list(everything(new_gateway))


def test_all_that_is_sent_is_valid_by_old_and_new_types(sent: list[Sent], package: Callable[[str], Path]) -> None:
    events = valid.members()
    for name, each in sent:
        if name in ("event", valid.SHELL):
            check_event(each)
        else:
            check(valid.kind_of(name, each, events), each)
    for version in OLDER:
        assert wrong_by(package(version), sent) == [f"openai {version}: 0 wrong"]


def test_what_is_not_valid_is_noticed(package: Callable[[str], Path]) -> None:
    wrong: list[Sent] = [("responses.Response", {"id": 7}), ("event", {"type": "response.created"})]
    assert wrong_by(package(LOWEST_CLIENT), wrong)[-1] == f"openai {LOWEST_CLIENT}: 2 wrong"


def wrong_by(folder: Path, sent: list[Sent]) -> list[str]:
    """Return what the types of a version of the package say, which is installed in the folder."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, valid.__file__]
    run = subprocess.run(command, input=json.dumps(sent).encode(), env=environment, capture_output=True, timeout=120)
    return (run.stdout + run.stderr).decode().splitlines()
