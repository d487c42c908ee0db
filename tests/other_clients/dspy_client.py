"""DSPy's `LM` with `model_type="responses"`."""

import dspy
from outcome import AGAIN, BASE_URL, FIRST, KEY, MODEL, TOOL, report

lm = dspy.LM(
    f"openai/{MODEL}", model_type="responses", api_base=BASE_URL, api_key=KEY, cache=False, tools=[TOOL], num_retries=0
)


def text(answers: list[object]) -> str:
    (answer,) = answers
    return answer["text"] if isinstance(answer, dict) else str(answer)


first = text(lm(FIRST))
messages = [{"role": "user", "content": FIRST}, {"role": "assistant", "content": first}]
report(first, text(lm(messages=[*messages, {"role": "user", "content": AGAIN}])))
