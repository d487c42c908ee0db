"""ReAct: code execution for a model that only writes text. The answer is printed while it grows.

Set AGENT_TOOLS_MODEL, and where the model is (OPENAI_BASE_URL, OPENAI_API_KEY or DASHSCOPE_API_KEY), to ask a real one.
"""

from agent_tools import settings
from agent_tools.agents import ReActChat
from agent_tools.testing import ScriptedModel

SCRIPT = [
    "I need the primes, so I compute them.\nAction: code_interpreter\nAction Input: ```py\n"
    "from sympy import primerange\nprimes = list(primerange(1000))\nprint(len(primes), sum(primes))\n```",
    "I look at their last digits too.\nAction: code_interpreter\nAction Input: ```py\n"
    "pd.Series([prime % 10 for prime in primes]).value_counts().sort_index()\n```",
    "I now know the final answer.\nFinal Answer: There are 168 primes below 1000, and their sum is 76127. "
    "All but 2 and 5 end in 1, 3, 7 or 9, about equally often.",
]

model = settings.model_name()
print(f"The model is {model}.\n" if model else "No model is set: a scripted one answers; the code is really run.\n")

question = "How many primes are there below 1000, what is their sum, and on which digits do they end?"
shown = 0
with ReActChat(llm=model or ScriptedModel(SCRIPT), function_list=["code_interpreter"], name="Mathematician") as bot:
    for response in bot.run([{"role": "user", "content": question}]):
        text = response[-1]["content"]
        print(text[shown:], end="", flush=True)
        shown = len(text)
print()
