"""Mirascope's `openai/...:responses`, which has no built-in tools."""

import os

from outcome import BASE_URL, FIRST, KEY, MODEL, report

os.environ.update(OPENAI_BASE_URL=BASE_URL, OPENAI_API_KEY=KEY)
from mirascope import llm

report(llm.Model(f"openai/{MODEL}:responses").call(FIRST).text())
