"""Fixtures of all suites: the transport, sandboxes that are closed, and the exceptions, each with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from agent_tools import AsyncSandbox, Sandbox


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--transport", choices=("sockets", "stdio"), default="sockets")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Expect those tests to fail that a suite's file lists in EXPECTED; one that passes all the same is a failure."""
    for item in items:
        expected = getattr(item.getparent(pytest.Module).obj, "EXPECTED", {})  # type: ignore[union-attr]
        if reason := expected.get(getattr(item, "originalname", item.name)):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.fixture(scope="session")
def new_sandbox(request: pytest.FixtureRequest) -> Iterator[Callable[[], Sandbox]]:
    """Makes sandboxes; they are closed at the end."""
    made: list[Sandbox] = []

    def make() -> Sandbox:
        made.append(Sandbox({"transport": request.config.getoption("--transport")}))
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.close()


@pytest.fixture(scope="session")
def new_async_sandbox(request: pytest.FixtureRequest) -> Iterator[Callable[[], AsyncSandbox]]:
    """Likewise, awaited."""
    made: list[AsyncSandbox] = []

    def make() -> AsyncSandbox:
        made.append(AsyncSandbox({"transport": request.config.getoption("--transport")}))
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.sync.close()
