"""An assistant with the code interpreter, a function of yours, and a file.

Set AGENT_TOOLS_MODEL, and where the model is (OPENAI_BASE_URL, OPENAI_API_KEY or DASHSCOPE_API_KEY), to ask a real one.
"""

from pathlib import Path

from agent_tools import settings
from agent_tools.agents import Assistant
from agent_tools.testing import ScriptedCall, ScriptedModel, ScriptedReply

CSV = Path(__file__).parent / "data" / "bike_rentals.csv"


def co2_saved(kilometres: float) -> float:
    """CO2, in kilograms, that cycling a distance saves against driving it.

    Args:
        kilometres: the distance.
    """
    return round(kilometres * 0.12, 1)


CODE = """
rentals = pd.read_csv('bike_rentals.csv', parse_dates=['time'])
by_month = rentals.resample('MS', on='time')['total'].sum()
by_month.plot(title='Rentals a month'); plt.show()
print(f'{by_month.idxmax():%B %Y} was the best month, with {by_month.max():,} rentals; {rentals.total.sum():,} in all')
"""
SCRIPT = [
    ScriptedReply(text="I look at the months.", calls=[ScriptedCall("code_interpreter", {"code": CODE})]),
    ScriptedReply(calls=[ScriptedCall("co2_saved", {"kilometres": 10_000})]),
    "The best month is in the output above, and the figure shows all of them. 10,000 km by bike save 1,200 kg of CO2.",
]

model = settings.model_name()
print(f"The model is {model}.\n" if model else "No model is set: a scripted one answers; code and tools are real.\n")

messages = [
    {
        "role": "user",
        "content": [
            {"text": "Which month had the most rentals? Draw all months. How much CO2 do 10,000 km by bike save?"},
            {"file": str(CSV)},
        ],
    }
]
with Assistant(llm=model or ScriptedModel(SCRIPT), function_list=["code_interpreter", co2_saved]) as bot:
    response = bot.run_nonstream(messages)

for message in response:
    if call := message.get("function_call"):
        print(f"[{message['role']}] {message['content']}\n{call['name']}({call['arguments']})\n")
    else:
        print(f"[{message['role']}] {message['content']}\n")
    for path in message.get("extra", {}).get("figures", ()):
        print(f"Figure: {path}\n")
