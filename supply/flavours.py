"""Builds the image's flavours one after the other, runs a check of each in a sandbox, and prints sizes and times.

    scripts/flavours [FLAVOUR ...]

Not part of the tests: it downloads and compiles for minutes. What a flavour has in `tests/flavours/` is run, too: that
needs the package index, and git on this machine. Exit code 1: a flavour lacks something.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from agent_tools.limits import MIB
from agent_tools.runtime.docker import context, image
from agent_tools.runtime.docker.engine import DockerEngine
from agent_tools.runtime.recipe import FLAVOURS, Flavour, Recipe
from agent_tools.tools.code_interpreter import CodeInterpreter

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests" / "flavours"
TIMEOUT = 300.0
EVERY_MODULE = """
import importlib, importlib.metadata, importlib.util
def needs_what_is_not_there(name):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as exc:
        return exc.name.partition('.')[0] in named  # not a package that is optional and left out
    return False
named = importlib.metadata.packages_distributions()
found = [name for name in named if name.isidentifier() and importlib.util.find_spec(name)]
assert len(found) > 30 and not (broken := list(filter(needs_what_is_not_there, found))), broken
"""
STACK = """
import matplotlib.pyplot as plt, numpy.testing, openpyxl, pandas, PIL, pyarrow, scipy.stats, seaborn, sklearn.svm, sympy
import statsmodels.api
plt.plot([1, 2]); plt.show()
"""
FULL = """
import bs4, cv2, docx, duckdb, geopandas, html5lib, imageio, ipywidgets, lxml.etree, markdown, networkx, nltk, numexpr
import pdfplumber, polars, pptx, pypdf, reportlab.pdfgen.canvas, shapely, skimage.io, sqlalchemy, tables, tabulate
import wordcloud, xarray, xlrd, xlsxwriter, yaml
import altair, pandas, plotly.express
plotly.express.scatter(x=[1, 2], y=[3, 4]).write_image('plotly.png')
altair.Chart(pandas.DataFrame({'a': [1, 2]})).mark_bar().encode(x='a:Q').save('altair.png')
for name in ('plotly.png', 'altair.png'):
    assert PIL.Image.open(name).width > 100, name
"""
AGENT = """
import subprocess
lines = '''set -e
git init -q repository && cd repository
printf 'int main(void) { return 0; }' > main.c
printf 'all: main.c\\\\n\\\\tgcc -o main main.c\\\\n' > Makefile && make -s
git add . && git -c user.email=a@b.c commit -qm first && git log --oneline
echo '{"a": 1}' | jq .a
rg -q main main.c && curl --version && unzip -v && ./main
printf 'def test(): pass' > test_it.py && pytest -q -p no:cacheprovider'''
done = subprocess.run(['bash', '-lc', lines], capture_output=True, text=True)
assert done.returncode == 0, done.stdout + done.stderr
"""
BASE = EVERY_MODULE + STACK
CHECKS: dict[Flavour, str] = {"lean": BASE, "newest": BASE, "full": BASE + FULL, "agent": BASE + AGENT}


def main(arguments: Sequence[str] | None = None) -> int:
    """Build and check, print a table, and return an exit code."""
    parser = argparse.ArgumentParser(prog="scripts/flavours", description=__doc__.split("\n")[0])
    parser.add_argument("flavours", nargs="*", metavar="FLAVOUR", help=f"of {FLAVOURS}; default: all")
    wanted = parser.parse_args(arguments).flavours or FLAVOURS
    if unknown := [name for name in wanted if name not in FLAVOURS]:
        parser.error(f"no flavour {unknown[0]!r}; there are {', '.join(FLAVOURS)}")
    print("| flavour | image | bytes beyond the one below | built in | check |\n|---|---|---|---|---|")
    problems = [problem for flavour in wanted if (problem := _row(DockerEngine(), flavour))]
    print(*problems, sep="\n", file=sys.stderr)
    return 1 if problems else 0


def _row(engine: DockerEngine, flavour: Flavour) -> str:
    """Build and check one flavour, print its row, and return what is wrong with it."""
    recipe, begun = Recipe(flavour=flavour), time.monotonic()
    is_there = engine.has_image(context.tag_for(recipe))
    tag = image.ensure(engine, recipe)
    took = "there already" if is_there else f"{time.monotonic() - begun:.0f} s"
    problem = _problem(flavour) or _failed_tests(flavour)
    size, below = _size(engine, tag), recipe.below
    beyond = f"{(size - _size(engine, context.tag_for(below))) / MIB:.0f} MiB" if below else ""
    print(f"| `{flavour}` | {size / MIB:.0f} MiB | {beyond} | {took} | {'failed' if problem else 'ok'} |", flush=True)
    return f"{flavour}: {problem}" if problem else ""


def _problem(flavour: Flavour) -> str:
    with (
        tempfile.TemporaryDirectory(prefix="agent-tools-flavour-") as folder,
        CodeInterpreter({"work_dir": folder, "flavour": flavour}) as tool,
    ):
        error = tool.run({"code": CHECKS[flavour]}, timeout=TIMEOUT).error
    return error.text if error else ""


def _failed_tests(flavour: Flavour) -> str:
    """Run the tests of one flavour, if it has any, and return what pytest says if they fail."""
    tests = FOLDER / f"{flavour}.py"
    if not tests.exists():
        return ""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


def _size(engine: DockerEngine, tag: str) -> int:
    return int(engine.image_facts(tag)["Size"])


if __name__ == "__main__":
    sys.exit(main())
