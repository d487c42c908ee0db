"""LiteLLM's proxy between OpenAI's client and the gateway."""

import openai
from outcome import AGAIN, BASE_URL, FIRST, KEY, MODEL, TOOL, report
from proxy import proxied

with proxied(BASE_URL, KEY, MODEL) as (url, key):
    client = openai.OpenAI(base_url=url, api_key=key, max_retries=0)
    with client.responses.stream(model=MODEL, input=FIRST, tools=[TOOL]) as stream:
        first = stream.until_done().get_final_response()
    second = client.responses.create(model=MODEL, input=AGAIN, tools=[TOOL], previous_response_id=first.id)
    report(first.output_text, second.output_text)
