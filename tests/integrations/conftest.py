"""Fixtures of all frameworks: the options of a sandbox, sandboxes that are closed, and the exceptions, with reasons."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_tools import AsyncSandbox
from agent_tools.engines.docker import image
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.machine.owner import Owner
from agent_tools.runtime.engine_lookup import shared_runtime
from tests.integrations.scenario import Death

os.environ.update(  # frameworks that tell of their use by default
    AGNO_TELEMETRY="false",
    CREWAI_DISABLE_TELEMETRY="true",
    DO_NOT_TRACK="1",
    HAYSTACK_TELEMETRY_ENABLED="False",
    OPENAI_AGENTS_DISABLE_TRACING="1",
    OTEL_SDK_DISABLED="true",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--transport", choices=("sockets", "stdio"), default="sockets")
    parser.addoption("--dies", action="store_true", help="be killed in the middle of the first call that a test stops")


def pytest_configure(config: pytest.Config) -> None:
    Death.is_due = config.getoption("--dies")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Expect those tests to fail that a framework's file lists in EXPECTED; one that passes all the same has failed."""
    for item in items:
        expected = getattr(item.getparent(pytest.Module).obj, "EXPECTED", {})  # type: ignore[union-attr]
        if reason := expected.get(getattr(item, "originalname", item.name)):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Expect those tests to be skipped that a framework lists in SKIPPED; one that runs all the same has failed."""
    report = yield
    listed = getattr(item.getparent(pytest.Module).obj, "SKIPPED", {})  # type: ignore[union-attr]
    name, kind = getattr(item, "originalname", item.name), getattr(item, "cls", None)
    if reason := listed.get(name) or listed.get(f"{kind and kind.__name__}.{name}"):
        if report.skipped:
            report.wasxfail = reason
        elif call.when == "call":
            report.outcome, report.longrepr = "failed", f"SKIPPED lists it, and it ran: {reason}"
    return report


@pytest.fixture(scope="session", autouse=True)
def _no_container_left() -> Iterator[None]:
    """The image is there before the first test, and no container of this process after the last."""
    engine = DockerEngine()
    image.ensure(engine)
    yield
    shared_runtime("docker").settle()
    left = [container.id for container, _ in engine.strays(Owner.current().labels)]
    assert left == [], "containers were left behind"


@pytest.fixture(scope="session")
def cfg(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The options of a sandbox."""
    return {"transport": request.config.getoption("--transport")}


@pytest.fixture(scope="session")
def new_sandbox(cfg: dict[str, Any]) -> Iterator[Callable[[], AsyncSandbox]]:
    """Makes sandboxes; they are closed at the end."""
    made: list[AsyncSandbox] = []

    def make() -> AsyncSandbox:
        made.append(AsyncSandbox(cfg))
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.sync.close()


@pytest.fixture(scope="session")
def gateway_url() -> Iterator[str]:
    """The URL of a gateway that runs in the venv of our own tests, for frameworks with OpenAI's code interpreter."""
    root = Path(__file__).resolve().parents[2]
    command = [root / ".venv" / "bin" / "python", "-m", "tests.integrations.state_gateway"]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield server.stdout.readline().strip()  # type: ignore[union-attr]
        server.stdin.close()  # type: ignore[union-attr]
