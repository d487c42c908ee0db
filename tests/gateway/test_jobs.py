"""Jobs: every failure is told once, in the same words whichever door it is, and gives the job's place back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent_tools.errors import EngineUnavailable, KernelDied, ModelError, ToolServiceError
from agent_tools.gateway.client_errors import client_error
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.jobs.event_log import EventLog
from agent_tools.gateway.jobs.jobs import Job, Jobs
from agent_tools.gateway.requests.failures import ApiError
from agent_tools.testing import ScriptedReply
from tests.gateway.conftest import NewGateway
from tests.gateway.test_responses import stream


class Broken(Job):
    """Yields one event, then raises."""

    is_closed = False

    def __init__(self, exc: Exception) -> None:
        super().__init__(EventLog(10_000))
        self._exc = exc

    def events(self) -> Generator[dict[str, Any], None, None]:
        yield {"kind": "begun"}
        raise self._exc

    def failed(self, failure: ApiError) -> Iterator[dict[str, Any]]:
        yield {"kind": failure.code}

    def close(self) -> None:
        self.is_closed = True


def test_a_job_that_raises_tells_it_closes_and_leaves_its_place(work_dir: Path) -> None:
    async def story() -> None:
        with ThreadPoolExecutor(1) as pool:
            jobs, job = Jobs(GatewayConfig("http://u", data_dir=work_dir), pool), Broken(KernelDied("it is gone"))
            place = await jobs.enter("me", needs_sandbox=True)
            jobs.follow(job, place)
            assert jobs.all_of(Broken) == [job]
            await job.log.closed()
            assert [event.value["kind"] for event in job.log.events] == ["begun", "code_interpreter_error"]
            assert (job.failure and job.failure.status, job.is_closed) == (500, True)
            assert (jobs.active, jobs.all_of(Broken)) == (0, [])

    asyncio.run(story())


@pytest.mark.parametrize(
    ("exc", "status", "code"),
    [
        (ApiError(418, "As it is.", code="teapot"), 418, "teapot"),
        (ModelError("no", status=429, code="slow_down"), 429, "slow_down"),
        (ModelError("no"), 502, "upstream_error"),
        (ModelError("no", status=401), 502, "upstream_unauthorized"),
        (EngineUnavailable("secret"), 503, "code_interpreter_unavailable"),
        (ToolServiceError(EngineUnavailable("secret")), 503, "code_interpreter_unavailable"),
        (ToolServiceError(code="Other", message="secret"), 500, "code_interpreter_error"),
        (KernelDied("secret"), 500, "code_interpreter_error"),
        (ValueError("secret"), 500, "internal_error"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_every_failure_has_its_error(exc: Exception, status: int, code: str, caplog: pytest.LogCaptureFixture) -> None:
    error = client_error(exc)
    assert (error.status, error.code) == (status, code)
    assert "secret" not in error.message + caplog.text


def test_the_upstreams_refusal_of_a_clients_own_key_is_the_clients() -> None:
    assert client_error(ModelError("no", status=401), is_clients_key=True).status == 401


def test_a_response_whose_last_event_fills_its_log_is_complete(new_gateway: NewGateway) -> None:
    replies = {"m": lambda _: ScriptedReply(text="x" * 2_000)}
    events = stream(new_gateway(replies), tools=[])
    size = sum(len(json.dumps(event, separators=(",", ":"))) for event in events)
    again = stream(new_gateway(replies, max_response_bytes=size), tools=[])
    assert [event["type"] for event in again] == [event["type"] for event in events]
    assert again[-1]["type"] == "response.completed"
