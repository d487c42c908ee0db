"""Agents with real sandboxes and scripted models: what only a sandbox shows, and the examples of documentation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent_tools.agents import Assistant, Cancel, ReActChat, TwoAgents
from agent_tools.agents.steps import CallOutput, Finished
from agent_tools.messages import FIGURES
from agent_tools.testing import ScriptedCall, ScriptedModel, ScriptedReply, ScriptedServer
from agent_tools.tools import CodeInterpreter

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_engine")]
AT_ONCE = 4
Make = Callable[..., CodeInterpreter]
PLOT = (
    "import pandas as pd\nimport matplotlib.pyplot as plt\ndf = pd.read_csv('data.csv')\nprint(df.value.sum())\n"
    "plt.plot(df['date'], df['value'])\nplt.title('Data Over Time')\nplt.show()"
)


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    (tmp_path / "data.csv").write_text("date,value\n2024-01-01,1\n2024-01-02,41\n")
    return tmp_path / "data.csv"


def code(text: str) -> ScriptedReply:
    return ScriptedReply(calls=[ScriptedCall("code_interpreter", {"code": text})])


def test_an_assistant_analyses_a_file_and_draws(tool: CodeInterpreter, csv: Path) -> None:
    model = ScriptedModel([code(PLOT), "The sum is 42."])
    content = [{"text": "Analyse this CSV file and create a visualization"}, {"file": str(csv)}]
    response = Assistant([tool], model).run_nonstream([{"role": "user", "content": content}])
    assert "stdout:\n\n```\n42\n" in response[1]["content"]
    (figure,) = response[1]["extra"][FIGURES]
    assert Path(figure).read_bytes().startswith(b"\x89PNG")
    assert tool.work_dir not in json.dumps(model.asked[1].messages)
    assert response[2]["content"] == "The sum is 42."


def test_react_keeps_variables_from_action_to_action(tool: CodeInterpreter) -> None:
    actions = [f"Go on.\nAction: code_interpreter\nAction Input: ```py\n{text}\n```" for text in ("x = 6", "x * 7")]
    bot = ReActChat([tool], ScriptedModel([*actions, "Final Answer: 42"]))
    (message,) = bot.run_nonstream([{"role": "user", "content": "6 * 7?"}])
    assert "Observation: execute_result:\n\n```\n42\n```" in message["content"]
    assert message["content"].endswith("Final Answer: 42")


def test_two_agents_share_a_sandbox_and_nothing_else(tool: CodeInterpreter, csv: Path) -> None:
    (csv.parent / "other.txt").write_text("not to be seen")
    read = ScriptedReply(calls=[ScriptedCall("file_access", {"path": "data.csv"})])
    look = f"import os; print(os.listdir(), os.path.exists({str(csv)!r})); pd.read_csv('data.csv').value.sum()"
    coder = ScriptedModel([code(look), "42"])
    with TwoAgents(ScriptedModel([read, "It is there."]), coder, root=csv.parent, code_interpreter=tool) as analysts:
        analysts.prepare("Use data.csv.")
        assert analysts.ask("What is the sum?") == "42"
    told = coder.asked[1].messages[-1]["content"]
    assert "['data.csv'] False" in told
    assert "42" in told


def test_cancelling_stops_code_in_mid_run_and_variables_stay(tool: CodeInterpreter) -> None:
    cancel, steps = Cancel(), []
    bot = Assistant([tool], ScriptedModel([code("y = 1\nprint('on', flush=True)\nwhile True: pass"), "no"]))
    for step in bot.steps([{"role": "user", "content": "Run"}], cancel):
        steps.append(step)
        if isinstance(step, CallOutput):
            threading.Timer(0.1, cancel.set).start()  # by then the loop waits for the code
    assert isinstance(steps[-1], Finished)
    assert steps[-1].reason == "cancelled"
    assert tool.call("y") == "execute_result:\n\n```\n1\n```"


def test_agents_at_once_do_not_mix(new_tool: Make, tmp_path: Path) -> None:
    def run(number: int) -> str:
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "data.csv").write_text(f"value\n{number}\n")
        look = "import os; print(x, open('data.csv').read().split()[1], sorted(os.listdir()))"
        script = [code(f"x = {number}"), code(look), "done"]
        bot = Assistant([tools[number]], ScriptedModel(script))
        content = [{"text": "Look"}, {"file": str(folder / "data.csv")}]
        return str(bot.run_nonstream([{"role": "user", "content": content}])[3]["content"])

    tools = [new_tool(work_dir=f"{new_tool().work_dir}-{number}", cpus=0.5) for number in range(AT_ONCE)]
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = list(pool.map(run, range(AT_ONCE)))
    finally:
        for tool in tools:
            tool.close()
            subprocess.run(["rm", "-rf", tool.work_dir], check=True)
    assert answers == [f"stdout:\n\n```\n{n} {n} ['data.csv']\n\n```" for n in range(AT_ONCE)]


# -- the examples of the documentation, run as they are written -------------------------------------------------------

ASSISTANT = """
from agent_tools.agents import Assistant

bot = Assistant(
    llm={'model': 'qwen-max'},
    function_list=['code_interpreter']
)

messages = [
    {
        'role': 'user',
        'content': [
            {'text': 'Analyze this CSV file and create a visualization'},
            {'file': 'path/to/data.csv'}
        ]
    }
]

for response in bot.run(messages=messages):
    print(response)
"""
REACT = """
from agent_tools.agents import ReActChat
import os

def create_data_analyst():
    bot = ReActChat(
        llm={'model': 'qwen-max'},
        name='Data Analyst',
        description='This agent can analyze data and create visualizations',
        function_list=['code_interpreter']
    )
    return bot

# Use the agent
bot = create_data_analyst()

messages = [
    {
        'role': 'user',
        'content': [
            {'text': 'Load the CSV, show summary statistics, and create a histogram'},
            {'file': 'stock_prices.csv'}
        ]
    }
]

for response in bot.run(messages):
    print(response)
"""
DIRECT = """
import json
from agent_tools.tools import CodeInterpreter
from agent_tools.tools.base import ToolServiceError

code_interpreter = CodeInterpreter()
print(code_interpreter.call(params='{"code": "print(2 + 2)"}'))
code = '''
import pandas as pd
import matplotlib.pyplot as plt

# Load data
df = pd.read_csv('data.csv')
print(df.head())

# Create visualization
plt.figure(figsize=(10, 6))
plt.plot(df['date'], df['value'])
plt.title('Data Over Time')
plt.savefig('plot.png')
plt.show()
'''
print(code_interpreter.call(params=json.dumps({'code': code}), files=['path/to/data.csv'], timeout=60))
code_interpreter.call(params='{"code": "x = 42"}')
print(code_interpreter.call(params='{"code": "print(x)"}'))
print(code_interpreter.call(params='{"code": "import time; time.sleep(100)"}', timeout=1))
try:
    print(code_interpreter.call(params='{"code": "1/0"}'))
except ToolServiceError as e:
    print(f"Error: {e.message}")
"""


@pytest.fixture
def served() -> Iterator[ScriptedServer]:
    action = "I look.\nAction: code_interpreter\nAction Input: ```py\npd.read_csv('stock_prices.csv').describe()\n```"

    def answer(request: dict[str, object]) -> ScriptedReply:
        messages = request["messages"]
        assert isinstance(messages, list)
        is_react = "Final Answer:" in str(messages[0]["content"])
        if is_react:
            done = "Observation: execute_result" in messages[0]["content"]
            return ScriptedReply("Final Answer: Done." if done else action)
        return ScriptedReply("Done.") if len(messages) > 1 else code(PLOT)

    with ScriptedServer({"qwen-max": answer}) as server:
        yield server


def _run(source: str, folder: Path, server: ScriptedServer | None = None) -> str:
    where = {"OPENAI_BASE_URL": server.base_url} if server else {}
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **where}
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_assistants_example(work_dir: Path, served: ScriptedServer) -> None:
    (work_dir / "path" / "to").mkdir(parents=True)
    (work_dir / "path" / "to" / "data.csv").write_text("date,value\n2024-01-01,1\n2024-01-02,41\n")
    lines = _run(ASSISTANT, work_dir, served).splitlines()
    assert "![fig-001](" in lines[-1]
    assert "'content': 'Done.'" in lines[-1]


def test_the_data_analysts_example(work_dir: Path, served: ScriptedServer) -> None:
    (work_dir / "stock_prices.csv").write_text("date,price\n2024-01-01,1\n2024-01-02,41\n")
    last = _run(REACT, work_dir, served).splitlines()[-1]
    assert "Observation: execute_result:" in last
    assert "Final Answer: Done." in last
    assert last.endswith("'name': 'Data Analyst'}]")


def test_the_tools_examples(work_dir: Path) -> None:
    (work_dir / "path" / "to").mkdir(parents=True)
    (work_dir / "path" / "to" / "data.csv").write_text("date,value\n2024-01-01,1\n2024-01-02,41\n")
    shown = _run(DIRECT, work_dir)
    for part in ("```\n4\n", "2024-01-02     41", "![fig-001](", "```\n42\n", "Timeout: Code", "ZeroDivisionError"):
        assert part in shown
