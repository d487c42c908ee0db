"""LiteLLM's SDK: `litellm.responses`, with `previous_response_id`."""

import litellm
from outcome import AGAIN, BASE_URL, FIRST, KEY, MODEL, TOOL, report


def ask(text: str, previous: str | None = None) -> litellm.ResponsesAPIResponse:
    return litellm.responses(
        model=f"openai/{MODEL}", input=text, tools=[TOOL], api_base=BASE_URL, api_key=KEY, previous_response_id=previous
    )


first = ask(FIRST)
second = ask(AGAIN, first.id)
report(first.output_text, second.output_text)
