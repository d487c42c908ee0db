"""verifiers: the example of a runtime, by what its base class promises."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integrations.scenario import PNG, begun, load_example

DRAW = "import matplotlib.pyplot as plt; plt.plot([1, 42]); plt.savefig('/tmp/fig.png'); print(6 * 7)"


@pytest.mark.stops
def test_the_example_runs(cfg: dict[str, Any]) -> None:
    async def turns() -> None:
        runtime = load_example("verifiers_runtime").AgentToolsRuntime(cfg)
        await runtime.start()
        try:
            done = await runtime.run(["sh", "-c", "echo $A; echo no >&2; exit 3"], {"A": "b"})
            assert (done.exit_code, done.stdout, done.stderr) == (3, "b\n", "no\n")
            assert (await runtime.run(["python3", "-c", DRAW], {})).stdout == "42\n"
            assert (await runtime.read("/tmp/fig.png")).startswith(PNG)
            await runtime.write("/tmp/folder/file", b"\0z")
            assert await runtime.read("/tmp/folder/file") == b"\0z"
            job = asyncio.ensure_future(runtime.run(["sh", "-c", "touch started; sleep 600"], {}))
            await begun(job, runtime.sandbox)
            job.cancel()
            await asyncio.wait([job])
            assert (await runtime.run(["sh", "-c", "pgrep sleep || echo ended"], {})).stdout == "ended\n"
            assert await runtime.alive()
        finally:
            await runtime.stop()
        assert not runtime.sandbox.is_alive

    asyncio.run(turns())
