"""CrewAI: an agent whose tool runs code in a sandbox. Its own interpreter was removed in 2026."""

from typing import Any

from crewai import Agent
from crewai.tools import tool

from agent_tools import Sandbox
from agent_tools.integrations.common import text_of


def answer(llm: Any, question: str, sandbox: Sandbox) -> str:
    """Let an agent answer, with code."""

    @tool("code_interpreter")
    def code_interpreter(code: str) -> str:
        """Runs Python in a sandbox. Variables and files stay from call to call; the last value is shown."""
        return text_of(sandbox.run_code(code))

    agent = Agent(role="analyst", goal="Answer with code", backstory="You count.", llm=llm, tools=[code_interpreter])
    return str(agent.kickoff(question).raw)


if __name__ == "__main__":
    with Sandbox() as one:
        print(answer("gpt-5-mini", "What is 6 times 7?", one))
