"""Haystack: OpenAIResponsesChatGenerator, with all that was said sent again."""

from haystack.components.generators.chat import OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils import Secret
from outcome import AGAIN, BASE_URL, FIRST, KEY, MODEL, TOOL, report

generator = OpenAIResponsesChatGenerator(
    api_key=Secret.from_token(KEY), model=MODEL, api_base_url=BASE_URL, tools=[TOOL], max_retries=0
)
said = [ChatMessage.from_user(FIRST)]
first = generator.run(said)["replies"][0]
second = generator.run([*said, first, ChatMessage.from_user(AGAIN)])["replies"][0]
report(first.text, second.text)
