"""Google's ADK by LiteLLM: its agent's own function is called back there, and not run here."""

import asyncio

from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from outcome import BASE_URL, FIRST, KEY, MODEL, report


def exec_command(cmd: str) -> str:
    """Run a command, here: say what it would print."""
    return f"its own {40 + 2}" if cmd.startswith("echo") else "nothing"


async def main() -> None:
    model = LiteLlm(f"openai/{MODEL}", api_base=BASE_URL, api_key=KEY)
    runner = InMemoryRunner(LlmAgent(name="analyst", model=model, tools=[exec_command]), app_name="a")
    session = await runner.session_service.create_session(app_name="a", user_id="u")
    asked = types.Content(role="user", parts=[types.Part(text=FIRST)])
    answer = ""
    async for event in runner.run_async(user_id="u", session_id=session.id, new_message=asked):
        answer = "".join(part.text or "" for part in (event.content.parts if event.content else None) or ()) or answer
    report(answer)


asyncio.run(main())
