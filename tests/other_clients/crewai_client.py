"""CrewAI: `LLM(api="responses")`, with the tool given in full, and its chain of responses."""

from crewai import LLM
from outcome import AGAIN, BASE_URL, FIRST, KEY, MODEL, TOOL, report

llm = LLM(
    model=MODEL,
    provider="openai",
    base_url=BASE_URL,
    api_key=KEY,
    api="responses",
    auto_chain=True,
    additional_params={"tools": [TOOL]},
)
report(llm.call(FIRST), llm.call(AGAIN))
