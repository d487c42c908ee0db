"""AG2: the example, with AG2's own scripted model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from ag2.events import ToolCallEvent
from ag2.testing import TestConfig, TrackingConfig

from agent_tools import AsyncSandbox
from tests.integrations.scenario import AFTER, ENDLESS, FILE, PICTURE, STATE, cancelled, load_example


def asked(sandbox: AsyncSandbox, *calls: tuple[str, str]) -> tuple[Any, Any]:
    steps = [
        ToolCallEvent(name="run_code", arguments=json.dumps({"code": code, "language": language}))
        for language, code in calls
    ]
    config = TrackingConfig(TestConfig(*steps, "done"))
    return config, load_example("ag2_agent").answer(config, "go", sandbox)


def seen(config: Any) -> str:
    return str([call.args for call in config.mock.call_args_list])


def test_the_example_runs(new_sandbox: Callable[[], AsyncSandbox]) -> None:
    sandbox = new_sandbox()
    calls = [("python", STATE), ("python", PICTURE), ("python", FILE), ("bash", "cat out.txt; echo; id -u >&2; exit 3")]
    config, reply = asked(sandbox, *calls)
    asyncio.run(reply)
    told = seen(config)
    assert "42" in told
    assert "[a figure]" in told
    assert "out.txt (2 bytes)" in told


@pytest.mark.stops
def test_a_cancelled_run_keeps_the_variables(new_sandbox: Callable[[], AsyncSandbox]) -> None:
    async def turns() -> str:
        sandbox = new_sandbox()
        await asked(sandbox, ("python", STATE))[1]
        await cancelled(asked(sandbox, ("python", ENDLESS))[1], sandbox)
        config, reply = asked(sandbox, ("python", AFTER))
        await reply
        return seen(config)

    assert "43" in asyncio.run(turns())
