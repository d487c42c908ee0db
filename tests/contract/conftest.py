"""The engines and transports that every contract is tried on."""

from __future__ import annotations

import pytest

from agent_tools.engines.engine import Engine
from agent_tools.runtime.runtime import Runtime
from agent_tools.runtime.transport.transport import TransportName
from tests.contract.images import image_of
from tests.contract.sessions import *  # noqa: F403
from tests.contract.states import new_sandbox as new_sandbox
from tests.contract.states import used_sandboxes as used_sandboxes
from tests.doubles import ProcessEngine


@pytest.fixture(scope="module", params=["docker-sockets", "docker-stdio", "process-sockets"])
def pair(request: pytest.FixtureRequest) -> str:
    """An engine and a transport; the double is one for unit tests, which use its sockets."""
    return str(request.param)


@pytest.fixture(scope="module")
def engine(pair: str, request: pytest.FixtureRequest) -> Engine:
    return request.getfixturevalue("docker_engine") if pair.startswith("docker") else ProcessEngine()


@pytest.fixture(scope="module")
def transport(pair: str) -> TransportName:
    return "stdio" if pair.endswith("stdio") else "sockets"


@pytest.fixture(scope="module")
def tag(engine: Engine) -> str:
    """The image's, where the engine has images."""
    return image_of(engine)


@pytest.fixture(scope="module")
def runtime(engine: Engine, tag: str) -> Runtime:
    return Runtime(engine, lambda packages: tag)
