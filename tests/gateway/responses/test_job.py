"""A response as a job: what it holds is let go of, whatever fails at its end."""

from __future__ import annotations

import asyncio

import pytest

from agent_tools.gateway.event_log import EventLog
from agent_tools.gateway.responses.job import ResponseJob
from agent_tools.gateway.responses.plan import choose, find, plan
from agent_tools.gateway.responses.remote_tools import RemoteTools
from agent_tools.gateway.responses.request import read_request
from agent_tools.gateway.services import Services
from tests.gateway.asking import CODE_TOOL, code
from tests.gateway.conftest import NewGateway


class Unclosable(RemoteTools):
    """Servers that cannot be hung up on."""

    def close(self) -> None:
        raise RuntimeError("the loop is gone")


class OpenJob(ResponseJob):
    """It does not let go of its container before it is closed."""

    def __init__(self, services: Services, log: EventLog) -> None:
        request = read_request({"model": "m", "input": "Go.", "tools": [CODE_TOOL]})
        found = find(services, "owner", request)
        super().__init__(services, plan(services, found, choose(services, found), services.upstream.key({})), log)
        self._remote = Unclosable(services.config, None, ())

    def _end(self, event: object) -> None:
        """Leave it all to `close`."""


def test_a_server_that_cannot_be_hung_up_on_keeps_no_sandbox(new_gateway: NewGateway) -> None:
    services = new_gateway({"m": [code("1 + 1"), "Two."]}).services

    async def made() -> OpenJob:
        return OpenJob(services, EventLog(10_000_000))

    job = asyncio.run(made())
    with pytest.raises(RuntimeError, match="the loop is gone"):
        job.work()
    assert job.log.events[-1].kind == "response.completed"
    assert list(services.containers.running().values()) == [False]
