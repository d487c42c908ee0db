"""`openai.AzureOpenAI` with an `azure_endpoint`, whose paths begin with /openai."""

import openai
from outcome import AGAIN, BASE_URL, FIRST, KEY, MODEL, TOOL, report

client = openai.AzureOpenAI(
    azure_endpoint=BASE_URL.removesuffix("/v1"), api_key=KEY, api_version="2025-04-01-preview", max_retries=0
)
first = client.responses.create(model=MODEL, input=FIRST, tools=[TOOL])
second = client.responses.create(model=MODEL, input=AGAIN, tools=[TOOL], previous_response_id=first.id)
report(first.output_text, second.output_text)
