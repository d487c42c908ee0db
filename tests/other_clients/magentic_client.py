"""magentic's `OpenaiChatModel`, by chat completions."""

from magentic import OpenaiChatModel, UserMessage
from outcome import BASE_URL, FIRST, KEY, MODEL, report

model = OpenaiChatModel(MODEL, base_url=BASE_URL, api_key=KEY)
report(model.complete([UserMessage(FIRST)]).content)
