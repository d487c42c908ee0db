"""The engines and transports that every contract is tried on."""

from __future__ import annotations

import pytest

from agent_tools.engines.engine import Engine
from agent_tools.runtime.runtime import Runtime
from agent_tools.runtime.transport.transport import TransportName
from tests.contract.images import image_of
from tests.doubles import ProcessEngine


@pytest.fixture(scope="module", params=["docker", "process"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return request.getfixturevalue("docker_engine") if request.param == "docker" else ProcessEngine()


@pytest.fixture(scope="module", params=["sockets", "stdio"])
def transport(request: pytest.FixtureRequest) -> TransportName:
    name: TransportName = request.param
    return name


@pytest.fixture(scope="module")
def tag(engine: Engine) -> str:
    """The image's, where the engine has images."""
    return image_of(engine)


@pytest.fixture(scope="module")
def runtime(engine: Engine, tag: str) -> Runtime:
    return Runtime(engine, lambda packages: tag)
