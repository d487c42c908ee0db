"""Builds the image's flavours one after the other, runs a check of each in a sandbox, and prints sizes and times.

    scripts/try flavours [FLAVOUR ...]

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

from agent_tools.engines import context
from agent_tools.engines.docker import image
from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.recipe import FLAVOURS, Flavour, Recipe
from agent_tools.limits import MIB
from agent_tools.results.execution import Display, Result
from agent_tools.tools.code_interpreter import CodeInterpreter

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests" / "flavours"
TIMEOUT = 600.0
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
import bs4, defusedxml, faker, lxml.etree, nest_asyncio, networkx, regex, xlsxwriter, yaml
import matplotlib.pyplot as plt, numpy.testing, openpyxl, pandas, PIL, pyarrow, scipy.stats, seaborn, sklearn.svm, sympy
import statsmodels.api
"""
FULL = """
import cv2, docx, duckdb, geopandas, html5lib, imageio, ipywidgets, markdown, nltk, numexpr
import pdfplumber, polars, pptx, pypdf, reportlab.pdfgen.canvas, shapely, skimage.io, sqlalchemy, tables, tabulate
import wordcloud, xarray, xlrd
import altair, pandas, plotly.express
plotly.express.scatter(x=[1, 2], y=[3, 4]).write_image('plotly.png')
altair.Chart(pandas.DataFrame({'a': [1, 2]})).mark_bar().encode(x='a:Q').save('altair.png')
for name in ('plotly.png', 'altair.png'):
    assert PIL.Image.open(name).width > 100, name
import matplotlib.animation
figure, axes = plt.subplots(); line, = axes.plot([1, 2])
movie = matplotlib.animation.FuncAnimation(figure, lambda n: line.set_ydata([n, 2]) or (line,), frames=3)
movie.save('movie.mp4'); plt.close()
assert open('movie.mp4', 'rb').read(12)[4:8] == b'ftyp'
"""
PNG = "image/png"
DRAWN = {
    "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()": {PNG},
    "import matplotlib; matplotlib.use('agg'); plt.plot([1, 2]); plt.show()": {PNG},
    "import pandas as pd; d = pd.DataFrame({'a': [1, 2], 'b': [3, 4]}); d.plot();": {PNG},
    "import seaborn as sns; sns.histplot(sns.load_dataset('tips'), x='tip');": {PNG},
    "import networkx; networkx.draw(networkx.path_graph(3))": {PNG},
    "import PIL.Image; PIL.Image.new('RGB', (20, 20))": {PNG},
}
"""Cells that show a figure, and the MIME types that each has to show."""
PLOTLY, ALTAIR = "application/vnd.plotly.v1+json", "application/vnd.vegalite.v6.json"
DRAWN_IN_FULL = {
    "import plotly.express as px; px.bar(x=['a'], y=[1]).show()": {PNG, PLOTLY},
    "px.line(x=[1, 2], y=[1, 2])": {PNG, PLOTLY},
    "import plotly.io as pio; pio.renderers.default = 'browser'; px.bar(x=['a'], y=[1]).show()": {PNG, PLOTLY},
    "px.bar(x=['a'], y=[1]).show('notebook', width=300, height=200)": {PNG, PLOTLY},
    "import altair as alt; chart = alt.Chart(d).mark_bar().encode(x='a:Q', y='b:Q'); chart": {PNG, ALTAIR},
    "chart.show()": {PNG, ALTAIR},
    "alt.renderers.enable('mimetype'); chart.display()": {PNG, ALTAIR},
    "import wordcloud; plt.imshow(wordcloud.WordCloud().generate('one two two')); plt.show()": {PNG},
    "import skimage.filters as f, numpy as np; plt.imshow(f.gaussian(np.eye(9))); plt.show()": {PNG},
    "import geopandas, shapely; geopandas.GeoSeries([shapely.Point(1, 1).buffer(1)]).plot();": {PNG},
    "import xarray; xarray.DataArray([[1, 2], [3, 4]], dims=('x', 'y')).plot();": {PNG},
}
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
OFFICE = """
import markitdown, pdf2image, pytesseract, subprocess
script = '''const docx = require('docx'), Slides = require('pptxgenjs'), fs = require('fs')
const page = new docx.Document({sections: [{children: [new docx.Paragraph('Forty-two words')]}]})
docx.Packer.toBuffer(page).then(data => fs.writeFileSync('a.docx', data))
const slides = new Slides()
slides.addSlide().addText('Forty-two slides', {x: 1, y: 1})
slides.writeFile({fileName: 'b.pptx'})'''
lines = '''set -e
node make.js && pandoc a.docx -t plain | grep -q Forty-two
soffice --headless --convert-to pdf a.docx b.pptx
pdftotext a.pdf - | grep -q words && qpdf --check b.pdf
pdftoppm -r 150 -png b.pdf b && tesseract b-1.png - | grep -q slides'''
open('make.js', 'w').write(script)
done = subprocess.run(['bash', '-lc', lines], capture_output=True, text=True)
assert done.returncode == 0, done.stdout + done.stderr
assert 'words' in pytesseract.image_to_string(pdf2image.convert_from_path('a.pdf')[0])
for name, text in {'a.docx': 'Forty-two words', 'b.pptx': 'Forty-two slides', 'a.pdf': 'Forty-two words'}.items():
    assert text in markitdown.MarkItDown().convert(name).text_content, name
"""
BASE = EVERY_MODULE + STACK
CHECKS: dict[Flavour, str] = {"lean": BASE, "newest": BASE, "full": BASE + FULL, "agent": BASE + AGENT}
CHECKS["office"] = CHECKS["full"] + OFFICE


def main(arguments: Sequence[str] | None = None) -> int:
    """Build and check, print a table, and return an exit code."""
    parser = argparse.ArgumentParser(prog="scripts/try flavours", description=__doc__.split("\n")[0])
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
        if error := tool.run({"code": CHECKS[flavour]}, timeout=TIMEOUT).error:
            return error.text
        drawn = {**DRAWN, **DRAWN_IN_FULL} if flavour in ("full", "office") else DRAWN
        return next(filter(None, (_not_shown(tool, code, types) for code, types in drawn.items())), "")


def _not_shown(tool: CodeInterpreter, code: str, types: set[str]) -> str:
    """Run a cell that draws, and return what is wrong unless it shows one figure of these types and says nothing."""
    execution = tool.run({"code": code}, timeout=TIMEOUT)
    shown = [set(output.data) for output in execution.outputs if isinstance(output, (Display, Result))]
    if not execution.ok or execution.stderr or sum(types <= each for each in shown) != 1:
        return f"{code}: {shown} {execution.stderr} {execution.error}"
    return ""


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
