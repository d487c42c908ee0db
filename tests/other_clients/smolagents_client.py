"""smolagents: an OpenAIModel of chat completions, passed on."""

from outcome import BASE_URL, FIRST, KEY, MODEL, report
from smolagents import ChatMessage, OpenAIModel

model = OpenAIModel(MODEL, api_base=BASE_URL, api_key=KEY)
report(model.generate([ChatMessage(role="user", content=[{"type": "text", "text": FIRST}])]).content)
