"""OpenAI's Agents SDK: the second turn uses what the code of the first left in its container."""

import os

from agents import Agent, CodeInterpreterTool, Runner, set_tracing_disabled

set_tracing_disabled(True)  # else all that is said goes to OpenAI

agent = Agent(
    name="Analyst",
    model=os.environ["OPENAI_MODEL"],  # asked at OPENAI_BASE_URL, with OPENAI_API_KEY
    tools=[CodeInterpreterTool(tool_config={"type": "code_interpreter", "container": {"type": "auto"}})],
)

first = Runner.run_sync(agent, "Write the first ten squares to squares.csv.")
print(first.final_output)
second = Runner.run_sync(agent, [*first.to_input_list(), {"role": "user", "content": "And their sum?"}])
print(second.final_output)
