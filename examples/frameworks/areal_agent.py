"""AReaL: an agent whose code runs in a sandbox of the rollout's own. AReaL needs no base class, only `run`.

AReaL's workflow gives `run` the address of its proxy and a key, or, in its mode `subproc`, the environment has them.
"""

from typing import Any

from agents import Agent, OpenAIProvider, RunConfig, Runner
from openai import AsyncOpenAI

from agent_tools import AsyncSandbox
from agent_tools.integrations.openai_agents import code_interpreter_tool
from agent_tools.sandbox.options import Config


class SandboxAgent:
    """Solves `data["messages"]` with Python; the reward is 1.0 if its last line is `data["answer"]`."""

    def __init__(self, cfg: Config | None = None, max_turns: int = 8) -> None:
        self.cfg, self.max_turns = cfg, max_turns

    async def run(self, data: dict[str, Any], **given: Any) -> float:
        client = AsyncOpenAI(
            base_url=given.get("base_url"),
            api_key=given.get("api_key"),
            http_client=given.get("http_client"),
            max_retries=0,
        )
        config = RunConfig(
            model_provider=OpenAIProvider(openai_client=client, use_responses=False), tracing_disabled=True
        )
        async with AsyncSandbox(self.cfg) as sandbox:
            agent = Agent("solver", model="default", tools=[code_interpreter_tool(sandbox)])
            done = await Runner.run(agent, data["messages"], run_config=config, max_turns=self.max_turns)
        return float(str(done.final_output).strip().splitlines()[-1:] == [str(data["answer"])])
