"""Inspect: `code_execution()`, which it offers to models it does not know as a function of its own."""

import os

from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import code_execution
from outcome import BASE_URL, FIRST, KEY, MODEL, report

os.chdir(os.environ["CLIENT_FOLDER"])
model = get_model(f"openai/{MODEL}", base_url=BASE_URL, api_key=KEY, responses_api=True)
task = Task([Sample(FIRST)], solver=[use_tools(code_execution(providers={"python": False})), generate()])
(log,) = evaluate(task, model=model, display="none", log_dir="logs")
report(log.samples[0].output.completion if log.samples else log.error)
