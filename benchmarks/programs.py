"""Programs of other people in sandboxes: problems of DS-1000, galleries, notebooks of books; and why some fail.

    scripts/try programs SOURCES [--kinds ds1000 seaborn ...] [--most 100] [--flavour full]

SOURCES is a folder with git clones named `<owner>+<name>`, and unpacked source distributions of PyPI: see KINDS.
Each program has its own kernel. Failures are sorted as in `corpus_reasons.py`: for `ours` the sandbox is to blame. It
prints a table and every failure of ours; the exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

from corpus import run_cell
from corpus_cells import Repository, cells_of, extract, git_folder
from corpus_reasons import REASONS, Outcome, sort_all

from agent_tools.tools import CodeInterpreter

PACKAGES = "numpy pandas matplotlib scikit-learn scipy seaborn"
VERSIONS = f"import importlib.metadata as m\nfor n in {PACKAGES!r}.split(): print(n, m.version(n), end='; ')"
SPLIT = re.compile(r"(?m)^# ?%%.*$|^#{20,}$")  # where the galleries of Sphinx cut a script into cells
NOT_HERE = re.compile(r"user_interfaces|sgskip|widgets/|conf\.py|__init__")
PASSED = "test_execution(_solution)\nif 'test_string' in globals(): test_string(_solution)\n"


class Program(NamedTuple):
    """One program: its path in its source, and its cells."""

    path: str
    cells: tuple[str, ...]


def problems(path: str, text: str) -> Iterator[Program]:
    """Yield the problems of DS-1000, each with its published solution and its own test."""
    for number, line in enumerate(text.splitlines()):
        row = json.loads(line)
        if (library := row["metadata"]["library"]) not in ("Pytorch", "Tensorflow"):
            code = f"{row['code_context']}\n_solution = {row['reference_code']!r}\n{PASSED}"
            yield Program(f"{path}#{number} {library}", (code,))


def script(path: str, text: str) -> Iterator[Program]:
    """Yield a script, cut into cells where its gallery cuts it."""
    yield Program(path, tuple(cell for cell in SPLIT.split(text) if cell.strip()))


def notebook(path: str, text: str) -> Iterator[Program]:
    """Yield a notebook."""
    yield Program(path, tuple(cell.code for cell in cells_of(json.loads(text)) if not cell.is_meant_to_fail))


def page(path: str, text: str) -> Iterator[Program]:
    """Yield the code of a page of Markdown."""
    yield Program(path, tuple(re.findall(r"(?ms)^```python\n(.*?)^```", text)))


Read = Callable[[str, str], Iterator[Program]]
KINDS: dict[str, tuple[str, str, Read]] = {
    "ds1000": ("yassine-turin+ds1000-codegen-eval", "ds1000_data/data/ds1000.jsonl", problems),
    "matplotlib": ("matplotlib-*", "galleries/**/*.py", script),
    "scikit-learn": ("scikit_learn-*", "examples/**/*.py", script),
    "seaborn": ("mwaskom+seaborn", "examples/*.py", script),
    "seaborn docs": ("mwaskom+seaborn", "doc/_docstrings/*.ipynb", notebook),
    "plotly": ("plotly+plotly.py", "doc/python/*.md", page),
    "altair": ("altair-viz+altair", "tests/examples_arguments_syntax/*.py", script),
    "scipy cookbook": ("scipy+scipy-cookbook", "ipython/*.ipynb", notebook),
    "pydata book": ("wesm+pydata-book", "*.ipynb", notebook),
    "handbook": ("jakevdp+PythonDataScienceHandbook", "notebooks/*.ipynb", notebook),
    "rasbt": ("rasbt+machine-learning-book", "ch*/*.ipynb", notebook),
    "molin": ("stefmolin+Hands-On-Data-Analysis-with-Pandas-2nd-edition", "ch_0*/*.ipynb", notebook),
    "statsmodels": ("statsmodels+statsmodels", "examples/notebooks/*.ipynb", notebook),
}


def laid_out(sources: Path, name: str, target: Path) -> tuple[Path, str]:
    """Copy a source to a fresh folder; return it, and the commit or version."""
    found = sorted(sources.glob(name))
    assert found, f"{sources / name} is not there: clone it, or unpack its source distribution"
    if "+" not in found[0].name:
        shutil.copytree(found[0], target)
        subprocess.check_call(["chmod", "-R", "a+rwX", target])
        return target, found[0].name.rpartition("-")[2]
    commit = subprocess.check_output(["git", "-C", git_folder(found[0]), "rev-parse", "HEAD"], text=True).strip()
    extract(sources, Repository(found[0].name, commit), target)
    return target, commit[:8]


def programs_of(folder: Path, pattern: str, read: Read, most: int) -> list[Program]:
    """Return the programs of a source, at random if there are more than wanted."""
    paths = [path for path in sorted(folder.glob(pattern)) if not NOT_HERE.search(str(path.relative_to(folder)))]
    read_all = (read(str(path.relative_to(folder)), path.read_text("utf-8", "replace")) for path in paths)
    found = [program for programs in read_all for program in programs if program.cells]
    return random.Random(7).sample(found, most) if len(found) > most else found


def outcomes(kind: str, folder: Path, programs: list[Program], flavour: str) -> Iterator[Outcome]:
    """Run programs, each in a fresh kernel and in its own folder, and yield the outcome of each cell."""
    with CodeInterpreter({"work_dir": str(folder), "flavour": flavour}) as tool:
        print(f"{kind}: {tool.run(VERSIONS).stdout}", file=sys.stderr)
        for program in programs:
            tool.restart()
            where = f"/workspace/{program.path.partition('#')[0]}"
            tool.run(f"import os\nos.chdir(os.path.dirname({where!r})); __file__ = {where!r}")
            for place, code in enumerate(program.cells):
                at = {"repository": kind, "path": program.path, "cell": place, "code": code}
                yield Outcome.read({**at, **run_cell(tool, code)})


def main() -> None:
    """Run, print, and exit by whether a program fails because of us."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", type=Path)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--most", type=int, default=10_000, help="programs of each kind, chosen at random")
    parser.add_argument("--flavour", default="lean")
    given = parser.parse_args()
    print(f"| programs | version | number | cells | {' | '.join(REASONS)} |\n|---|---|---|---|{'---|' * len(REASONS)}")
    failures: list[Outcome] = []
    for kind in given.kinds:
        source, pattern, read = KINDS[kind]
        with tempfile.TemporaryDirectory(prefix="agent-tools-programs-") as scratch:
            folder, version = laid_out(given.sources, source, Path(scratch) / "work")
            programs = programs_of(folder, pattern, read, given.most)
            run = list(outcomes(kind, folder, programs, given.flavour))
        reasons = sort_all([run])[0]
        failures += [each for each, reason in zip(run, reasons) if reason == "ours"]
        counts = Counter(reasons)
        columns = kind, version, len(programs), len(run), *(counts[reason] for reason in REASONS)
        print(f"| {' | '.join(map(str, columns))} |", flush=True)
    for each in failures:
        print(f"ours: {each.repository} {each.path} cell {each.cell}: {each.kind} {each.name}: {each.message[:300]}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
