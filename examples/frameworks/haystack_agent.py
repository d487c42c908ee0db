"""Haystack: an agent whose tool runs code in a sandbox."""

from typing import Any

from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function

from agent_tools import Sandbox
from agent_tools.integrations.common import text_of


def answer(chat_generator: Any, question: str, sandbox: Sandbox) -> list[ChatMessage]:
    """Let an agent answer, with code; return the conversation."""

    def code_interpreter(code: str) -> str:
        """Runs Python in a sandbox. Variables and files stay from call to call; the last value is shown."""
        return text_of(sandbox.run_code(code))

    agent = Agent(chat_generator=chat_generator, tools=[create_tool_from_function(code_interpreter)])
    return agent.run(messages=[ChatMessage.from_user(question)])["messages"]


if __name__ == "__main__":
    from haystack.components.generators.chat import OpenAIChatGenerator

    with Sandbox() as one:
        print(answer(OpenAIChatGenerator(), "What is 6 times 7?", one)[-1].text)
