"""The Python and the main libraries of an image, read off what it is made from: no engine is asked."""

from __future__ import annotations

import re
from functools import lru_cache

from agent_tools.runtime.docker.shipped import shipped
from agent_tools.runtime.recipe import Recipe

PYTHON = "3.13"
MAIN = {
    "lean": "numpy pandas matplotlib seaborn scikit-learn scipy statsmodels sympy pyarrow openpyxl pillow networkx "
    "lxml beautifulsoup4 xlsxwriter",
    "full": "plotly altair polars duckdb scikit-image opencv-python-headless "
    "python-docx python-pptx pypdf pdfplumber reportlab nltk",
    "agent": "pytest",
}
_PIN = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)


@lru_cache(maxsize=64)
def contents_told(recipe: Recipe) -> str:
    """Return a sentence for a model: the Python, the main libraries with their versions, and what was added."""
    stack = "newest" if recipe.flavour == "newest" else "lean"
    named = _named(f"{'requirements' if stack == 'lean' else 'flavours/newest'}.lock", MAIN["lean"])
    if recipe.flavour in ("full", "agent"):
        named += _named(f"flavours/{recipe.flavour}.lock", MAIN[recipe.flavour])
    if recipe.flavour == "agent":
        named += shipped("docker/flavours/agent.debian").read_text().split()
    return f"Python {PYTHON} with {', '.join([*named, *recipe.packages, *recipe.debian_packages])}."


def _named(lock: str, names: str) -> list[str]:
    pins = dict(_PIN.findall(shipped(f"docker/{lock}").read_text()))
    return [f"{name} {pins[name]}" for name in names.split()]
