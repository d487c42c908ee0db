"""Anthropic's SDK: an answer, a stream, a count of tokens, and a refusal, which the gateway passes on."""

import anthropic
from outcome import AGAIN, BASE_URL, FIRST, KEY, report

client = anthropic.Anthropic(base_url=BASE_URL.removesuffix("/v1"), api_key=KEY, max_retries=0)


def said(text: str) -> list[anthropic.types.MessageParam]:
    return [{"role": "user", "content": text}]


first = client.messages.create(model="m", max_tokens=9, messages=said(FIRST))
with client.messages.stream(model="m", max_tokens=9, messages=said(AGAIN)) as stream:
    again = stream.get_final_text()
count = client.messages.count_tokens(model="m", messages=said(FIRST)).input_tokens
try:
    client.messages.create(model="none", max_tokens=9, messages=said(FIRST))
except anthropic.NotFoundError as exc:
    report(first.content[0].text, again, count, exc.body["error"]["type"])
