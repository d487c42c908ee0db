"""The share of other people's code that runs in an image: each cell of a corpus of notebooks and scripts, in sandboxes.

    git clone ... CLONES/<owner>+<name>             # each repository of corpus.json, with its history
    .venv/bin/python benchmarks/corpus.py run CLONES CACHE [--flavour newest | --image TAG] > newest.jsonl
    .venv/bin/python benchmarks/corpus.py table lean.jsonl newest.jsonl

The corpus is public code of 2020 to 2024, what models were trained on; none of it is part of this project. A notebook's
cells run in turn in one kernel, as its readers ran them, for at most a minute each. `run` writes a line of JSON for
each cell; `table` sorts the failures by their reasons (corpus_reasons.py) and prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from corpus_cells import Notebook, data_folder, extract, notebooks_of, repositories
from corpus_reasons import REASONS, Outcome, sort_all

from agent_tools.errors import AgentToolsError
from agent_tools.results.execution import Died, Execution, TimedOut
from agent_tools.tools import CodeInterpreter

TIMEOUT = 60.0  # seconds of one cell
BUDGET = 300.0  # seconds of one notebook; what is left then is too slow
AT_ONCE = 2


def main() -> None:
    """Run, or sort what was run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run")
    run.add_argument("clones", type=Path, help="folder of clones, each named <owner>+<name>")
    run.add_argument("cache", type=Path, help="folder for copies of the repositories, made anew by each run")
    run.add_argument("--image", help="an image of the engine, instead of a flavour")
    run.add_argument("--flavour", default=None)
    run.add_argument("--only", default="", help="a part of <owner>/<name>/<path>")
    run.set_defaults(command=_run)
    table = commands.add_parser("table")
    table.add_argument("runs", type=Path, nargs="+", help="what `run` printed; a file's name names its column")
    table.add_argument("--failures", default="", help="a reason: list its failures instead")
    table.set_defaults(command=_table)
    arguments = parser.parse_args()
    arguments.command(arguments)


def _run(arguments: argparse.Namespace) -> None:
    options = {"image": arguments.image} if arguments.image else {"flavour": arguments.flavour or "lean"}
    notebooks = list(_laid_out(arguments.clones, arguments.cache, arguments.only))
    print(f"{sum(len(each.cells) for each in notebooks)} cells of {len(notebooks)} files", file=sys.stderr)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for lines in pool.map(partial(_outcomes, arguments.cache.resolve(), options), notebooks):
            print(*map(json.dumps, lines), sep="\n", flush=True)


def _laid_out(clones: Path, cache: Path, only: str) -> Iterator[Notebook]:
    """Lay each repository out in a fresh folder, with the data sets in it, and yield its notebooks."""
    data, data_name = data_folder()
    for repository in repositories():
        folder = cache / repository.folder
        shutil.rmtree(folder, ignore_errors=True)
        extract(clones, repository, folder)
        extract(clones, data, folder / data_name)
        yield from (each for each in notebooks_of(repository, folder) if only in f"{repository.name}/{each.path}")


def _outcomes(cache: Path, options: dict[str, Any], notebook: Notebook) -> list[dict[str, Any]]:
    """Run a notebook in a sandbox of its own; return what became of each cell."""
    env = {"SEABORN_DATA": f"/workspace/{data_folder()[1]}"}
    work_dir, figures = str(cache / notebook.repository.folder), cache / "figures"
    figures.mkdir(exist_ok=True)
    begun, lines = time.monotonic(), []
    with CodeInterpreter({"work_dir": work_dir, "figures_dir": str(figures), "env": env, **options}) as tool:
        folder = str(Path("/workspace") / Path(notebook.path).parent)
        tool.run(f"import os, sys\nos.chdir({folder!r})\nsys.path.insert(0, {folder!r})\ndel os, sys")
        for number, cell in enumerate(notebook.cells):
            is_late = time.monotonic() - begun > BUDGET
            outcome = {"kind": "slow"} if is_late else run_cell(tool, cell.code)
            place = {"repository": notebook.repository.name, "path": notebook.path, "cell": number}
            lines.append({**place, "code": cell.code, "is_meant_to_fail": cell.is_meant_to_fail, **outcome})
    print(f"{notebook.repository.name}/{notebook.path} {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return lines


def run_cell(tool: CodeInterpreter, code: str) -> dict[str, Any]:
    """Run one cell; return the fields of `Outcome` that tell how it ended."""
    begun = time.monotonic()
    try:
        execution = tool.run({"code": code}, timeout=TIMEOUT)
    except AgentToolsError as exc:
        return {"kind": "refused", "name": type(exc).__name__, "message": str(exc)[:500]}
    return {**_ending(execution), "seconds": round(time.monotonic() - begun, 3)}


def _ending(execution: Execution) -> dict[str, Any]:
    for output in execution.outputs:
        if isinstance(output, TimedOut):
            return {"kind": "slow"}
        if isinstance(output, Died):
            return {"kind": "died", "message": output.reason}
    error = execution.error
    if error is None:
        return {"kind": "ran", "printed": execution.stderr[-300:]}
    return {"kind": "failed", "name": error.name, "message": error.value[:500], "traceback": error.traceback[-6000:]}


def _table(arguments: argparse.Namespace) -> None:
    runs = _common({path.stem: _read(path) for path in arguments.runs})
    sorted_runs = dict(zip(runs, sort_all(list(runs.values()))))
    if arguments.failures:
        for name, reasons in sorted_runs.items():
            _list_failures(name, runs[name], reasons, arguments.failures)
        return
    by_reason = {name: Counter(reasons) for name, reasons in sorted_runs.items()}
    _print_rows("", runs, by_reason)
    print()
    for repository in dict.fromkeys(outcome.repository for outcome in next(iter(runs.values()))):
        counts = {name: _share(runs[name], sorted_runs[name], repository) for name in runs}
        print(f"| {repository} | " + " | ".join(counts.values()) + " |")


def _common(runs: dict[str, list[Outcome]]) -> dict[str, list[Outcome]]:
    """Return the runs without the cells that one of them has not."""
    keys = set.intersection(*({each.key for each in run} for run in runs.values()))
    return {name: [each for each in run if each.key in keys] for name, run in runs.items()}


def _print_rows(title: str, runs: dict[str, list[Outcome]], by_reason: dict[str, Counter[str]]) -> None:
    print(f"| {title} | " + " | ".join(runs) + " |\n|---|" + "---|" * len(runs))
    print("| cells | " + " | ".join(f"{len(outcomes):,}" for outcomes in runs.values()) + " |")
    for reason in REASONS:
        print(f"| {reason} | " + " | ".join(f"{by_reason[name][reason]:,}" for name in runs) + " |")
    print("| ran, of all | " + " | ".join(f"{by_reason[n]['ran'] / len(runs[n]):.1%}" for n in runs) + " |")


def _share(outcomes: list[Outcome], reasons: list[str], repository: str) -> str:
    own = [reason for outcome, reason in zip(outcomes, reasons) if outcome.repository == repository]
    return f"{own.count('ran')} of {len(own)}"


def _list_failures(name: str, outcomes: list[Outcome], reasons: list[str], wanted: str) -> None:
    for outcome, reason in zip(outcomes, reasons):
        if reason == wanted:
            first = outcome.message.strip().splitlines()[:1]
            print(f"{name} {outcome.path}#{outcome.cell} {outcome.name}: {''.join(first)[:160]}")


def _read(path: Path) -> list[Outcome]:
    return [Outcome.read(json.loads(line)) for line in path.read_text().splitlines() if line.strip()]


Command = Callable[[argparse.Namespace], None]

if __name__ == "__main__":
    main()
