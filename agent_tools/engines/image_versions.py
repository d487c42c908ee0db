"""The Python and the main libraries of an image, read from its build files without asking an engine."""

from __future__ import annotations

import re
from functools import lru_cache

from agent_tools.engines.context import of_debian
from agent_tools.engines.package_data import shipped
from agent_tools.engines.recipe import Recipe

PYTHON = "3.13"
MAIN = {
    "lean": "numpy pandas matplotlib seaborn scikit-learn scipy statsmodels sympy pyarrow openpyxl pillow networkx "
    "lxml beautifulsoup4 xlsxwriter",
    "full": "plotly altair polars duckdb scikit-image opencv-python-headless "
    "python-docx python-pptx pypdf pdfplumber reportlab nltk",
    "agent": "pytest",
    "office": "markitdown pdf2image pytesseract",
}
_PIN = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)


@lru_cache(maxsize=64)
def contents_told(recipe: Recipe) -> str:
    """Return a sentence for a model: Python, the main libraries with their versions, and the added packages."""
    stack = "newest" if recipe.flavour == "newest" else "lean"
    named = _named(f"{'requirements' if stack == 'lean' else 'flavours/newest'}.lock", MAIN["lean"])
    for flavour in ("full", "agent", "office"):
        if recipe.flavour == flavour or (recipe.flavour, flavour) == ("office", "full"):
            named += _named(f"flavours/{flavour}.lock", MAIN[flavour])
    if recipe.flavour in ("agent", "office"):
        named += [name for name in of_debian(recipe.flavour) if not name.startswith(("lib", "fonts-"))]
    return f"Python {PYTHON} with {', '.join([*named, *recipe.packages, *recipe.debian_packages])}."


def _named(lock: str, names: str) -> list[str]:
    pins = dict(_PIN.findall(shipped(f"docker/{lock}").read_text()))
    return [f"{name} {pins[name]}" for name in names.split()]
