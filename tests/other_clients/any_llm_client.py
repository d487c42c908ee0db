"""any-llm's `responses`, with `previous_response_id`."""

from any_llm import responses
from outcome import AGAIN, BASE_URL, FIRST, KEY, MODEL, TOOL, report

asked = {"model": MODEL, "provider": "openai", "api_base": BASE_URL, "api_key": KEY, "tools": [TOOL]}
first = responses(input_data=FIRST, **asked)
second = responses(input_data=AGAIN, previous_response_id=first.id, **asked)
report(first.output_text, second.output_text)
