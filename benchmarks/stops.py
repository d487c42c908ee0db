"""A table of the ways to run something by the ways to stop it: what ran on, what the answer said, what was kept.

    .venv/bin/python benchmarks/stops.py [--only WORD ...] [--at-once 2] [--details]

Each way runs in a sandbox of its own, five times: up to its time limit, interrupted, cancelled, with a reader that
leaves, and with its kernel killed. Before it x is set; the code sets y, waits, and would write a file in its last line.
Right is a cell of the table in which

- no later line of the code ran, and no process or fork that the code waited for runs on;
- the answer is the time limit, the interrupt or the end of the kernel;
- x is kept, and y, unless the kernel had to be killed;
- the next call finds this state, and has no words of its own; where something runs on that should, an answer names it.

Prints the table, and the cells that are wrong. Exit code 1: there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from agent_tools import Sandbox
from agent_tools.errors import AgentToolsError
from agent_tools.results.execution import Died, Error, Execution, Notice, Output, TimedOut
from agent_tools.runtime.in_thread import iterate_in_thread
from agent_tools.runtime.runtime import Runtime

LIMIT = 1.5  # seconds of a run that is to reach its time limit
LATER = 20.0  # seconds of one that something else stops
SETTLED = 0.2  # seconds after which the code waits, and a copy of the kernel is taken
BEAT = 0.15  # seconds in which a fork that runs on has written to its file
PATIENCE = 15.0  # seconds for the code to begin
INTERRUPTS = ("KeyboardInterrupt", "CancelledError")
STOPS = ("limit", "interrupt", "cancel", "gone", "crash")
BEGUN = "open('begun', 'w').close()"
SLEEP = "sleep 600"
FILES = {
    "slow.py": f"import time\n{BEGUN}\ntime.sleep(600)",
    "slow.ipy": f"{BEGUN}\n!{SLEEP}",
    "slow.ipynb": '{"cells": [{"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": null, "id": "a", '
    f'"source": "{BEGUN}\\n!{SLEEP}"}}], "metadata": {{}}, "nbformat": 4, "nbformat_minor": 5}}',
    "beats.py": "import time\ndef beat(*_):\n    while True:\n        with open('beat', 'a') as file:\n"
    "            file.write('.')\n        time.sleep(0.03)",
}
PROBE = f"""
import os
def _lines():
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open(f'/proc/{{pid}}/cmdline', 'rb') as file:
                yield file.read().replace(b'\\0', b' ').decode().strip()
        except OSError:
            pass
[globals().get('x'), globals().get('y'), sorted(each for each in _lines() if each == {SLEEP!r})]
"""


@dataclass(frozen=True)
class Way:
    """A way to run something, and what about it is special.

    Attributes:
        code: what waits; it makes the file `begun`.
        setup: code before it, with imports.
        is_whole: it is a cell of its own, so no line follows.
        is_deaf: it does not end when it is interrupted: it is killed at its limit, or after it was cancelled.
        goes_on: it handles the interrupt, and goes on to its end.
        lives: a process of it was started to live on.
    """

    code: str
    setup: str = ""
    is_whole: bool = False
    is_deaf: bool = False
    goes_on: bool = False
    lives: bool = False


def python(code: str, **special: bool) -> Way:
    """Return a way in Python, whose first line tells that it has begun."""
    imports = "import asyncio, subprocess, threading, time, os, sys"
    return Way(f"{BEGUN}\n{code}", imports, **special)


WAYS: Mapping[str, Way] = {
    "plain loop": python("while True: pass"),
    "time.sleep": python("time.sleep(600)"),
    "await sleep": python("await asyncio.sleep(600)"),
    "await gather": python("await asyncio.gather(*[asyncio.sleep(600) for _ in range(3)])"),
    "loop in an await": python("await asyncio.sleep(0)\nwhile True: pass"),
    "asyncio.run": python("async def main():\n    await asyncio.sleep(600)\nasyncio.run(main())"),
    "asyncio.run, loop": python("async def main():\n    while True: await asyncio.sleep(0)\nasyncio.run(main())"),
    "asyncio.to_thread": python("await asyncio.to_thread(threading.Event().wait, 3)"),
    "asyncio program": python(f"p = await asyncio.create_subprocess_exec(*'{SLEEP}'.split())\nawait p.wait()"),
    "asyncio shell": python(f"p = await asyncio.create_subprocess_shell('{SLEEP}; echo')\nawait p.communicate()"),
    "!": python(f"!{SLEEP}"),
    "! pipeline": python(f"!{SLEEP} | cat"),
    "x = !": python(f"z = !{SLEEP}"),
    "!!": python(f"!!{SLEEP}"),
    "%sx": python(f"%sx {SLEEP}"),
    "%alias": python(f"%alias doze {SLEEP}\n%doze"),
    "%%bash": Way(f"%%bash\ntouch begun\n{SLEEP}\ntouch went_on", is_whole=True),
    "%%script": Way("%%script python3\nimport time\nopen('begun', 'w')\ntime.sleep(600)", is_whole=True),
    "%run file": Way("%run slow.py"),
    "%run -m": Way("%run -m slow"),
    "%run .ipy": Way("%run slow.ipy"),
    "%run notebook": Way("%run slow.ipynb"),
    "%rerun": Way(
        "%rerun -g of_minutes",
        f"'of_minutes'\nif 'x' in globals():\n    {BEGUN}\n    import time; time.sleep(600)",
    ),
    "%time": python("%time time.sleep(600)"),
    "%%capture": Way(f"%%capture\n{BEGUN}\n!{SLEEP}\nopen('went_on', 'w').close()", is_whole=True),
    "%%timeit": Way(f"%%timeit -n 1 -r 1\n{BEGUN}\nimport time; time.sleep(600)", is_whole=True),
    "run_cell": python("get_ipython().run_cell('import time; time.sleep(600)')"),
    "run_cell, later": python("get_ipython().run_cell('1')\nwhile True: pass"),
    "run_cell of !": python(f"get_ipython().run_cell('!{SLEEP}')"),
    "subprocess.run": python(f"subprocess.run('{SLEEP}'.split())"),
    "shell=True": python(f"subprocess.run('{SLEEP} | cat; echo', shell=True)"),
    "Popen.wait": python(f"subprocess.Popen('{SLEEP}'.split()).wait()"),
    "communicate": python(f"subprocess.Popen('{SLEEP}; echo', shell=True, stdout=subprocess.PIPE).communicate()"),
    "os.system": python(f"os.system('{SLEEP}')"),
    "program that lives": python(
        f"subprocess.Popen('{SLEEP}'.split(), start_new_session=True)\ntime.sleep(600)", lives=True
    ),
    "multiprocessing": python(
        "import beats, multiprocessing\nmultiprocessing.get_context('fork').Pool(2).map(beats.beat, [1, 2])"
    ),
    "Process.join": python(
        "import beats, multiprocessing\nc = multiprocessing.get_context('fork').Process(target=beats.beat)\n"
        "c.start()\nc.join()"
    ),
    "ProcessPoolExecutor": python(
        "import beats, concurrent.futures\nwith concurrent.futures.ProcessPoolExecutor(2) as pool:\n"
        "    list(pool.map(beats.beat, [1, 2]))"
    ),
    "joblib": python("import beats, joblib\njoblib.Parallel(2)(joblib.delayed(beats.beat)() for _ in range(2))"),
    "thread.join": python("t = threading.Thread(target=time.sleep, args=(3,))\nt.start()\nt.join()"),
    "ThreadPoolExecutor": python(
        "import concurrent.futures\nwith concurrent.futures.ThreadPoolExecutor(2) as pool:\n"
        "    list(pool.map(time.sleep, [3, 3]))"
    ),
    "lock": python("lock = threading.Lock()\nlock.acquire()\nlock.acquire()"),
    "NumPy": python("import numpy\na = numpy.ones((400, 400))\nwhile True: a @ a"),
    "regular expression": python("import re\nre.match('(a+)+$', 'a' * 50 + 'b')"),
    "input from a pipe": python("os.read(os.pipe()[0], 1)"),
    "a host function": python("await wait_long()"),
    "C loop": python("import itertools\nsum(itertools.repeat(1))", is_deaf=True),
    "swallows one": python("try:\n    time.sleep(600)\nexcept BaseException: pass", goes_on=True),
    "swallows all": python("while True:\n    try: time.sleep(600)\n    except BaseException: pass", is_deaf=True),
    "raises another": python("try:\n    time.sleep(600)\nfinally:\n    {}['key']", goes_on=True),
}
GOES_ON_AS = {"raises another": "KeyError"}


@dataclass
class Cell:
    """What one way did when it was stopped in one way."""

    said: str = ""
    ran_on: list[str] = field(default_factory=list)
    kept: str = ""
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Trial:
    """One way in one sandbox."""

    def __init__(self, name: str, sandbox: Sandbox) -> None:
        self.name, self.way, self.sandbox = name, WAYS[name], sandbox
        self.folder = Path(str(sandbox.options.work_dir))

    def cell(self, stop: str) -> Cell:
        """Run the code, stop it, and look at what is left."""
        cell = Cell()
        try:
            self._prepare()
            began = time.monotonic()
            outputs = self._stopped(stop)
            cell.seconds = time.monotonic() - began
            time.sleep(BEAT)
            self._judge_answer(stop, outputs, cell)
            self._judge_state(stop, cell)
        except (AgentToolsError, AssertionError, RuntimeError) as exc:
            cell.wrong.append(f"{type(exc).__name__}: {exc}")
        return cell

    def _prepare(self) -> None:
        self.sandbox.restart()
        for name in ("begun", "went_on", "beat"):
            (self.folder / name).unlink(missing_ok=True)
        for name, text in FILES.items():
            self.sandbox.write_file(name, text)
        for code in (self.way.setup or "1", "import os\nx = 41\nos.getpid()"):
            done = self.sandbox.run_code(code)
            assert done.ok, done
        self.pid = done.value
        time.sleep(SETTLED)

    def _stopped(self, stop: str) -> list[Output]:
        """Run and stop the code; return its outputs, as far as somebody reads them."""
        code = self.way.code if self.way.is_whole else f"y = 1\n{self.way.code}\nopen('went_on', 'w').close()"
        cancelled = threading.Event()
        # Code that no interrupt ends goes on up to its limit.
        limit = LIMIT if stop == "limit" or (stop == "interrupt" and self.way.is_deaf) else LATER
        outputs: list[Output] = []
        if stop == "gone":
            self._leave(code)
            return outputs
        reader = threading.Thread(target=lambda: outputs.extend(self.sandbox.stream(code, limit, cancelled)))
        reader.start()
        self._await_begin()
        if stop == "interrupt":
            self.sandbox.interrupt()
        elif stop == "cancel":
            self.sandbox.cancel(cancelled)
        elif stop == "crash":
            self.sandbox.run_command(f"kill -9 {self.pid}")
        reader.join()
        return outputs

    def _leave(self, code: str) -> None:
        """Leave the stream, as a door does when its client has gone: the task that reads it is cancelled."""
        cancelled = threading.Event()

        async def read() -> None:
            stream = self.sandbox.stream(code, LATER, cancelled)
            async for _ in iterate_in_thread(stream, partial(self.sandbox.cancel, cancelled)):
                pass

        async def leave() -> None:
            task = asyncio.create_task(read())
            await asyncio.to_thread(self._await_begin)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(leave())

    def _await_begin(self) -> None:
        """Wait until the code has begun to wait."""
        ends = time.monotonic() + PATIENCE
        while not (self.folder / "begun").exists():
            if time.monotonic() > ends:
                raise RuntimeError("the code did not begin")
            time.sleep(0.01)
        time.sleep(SETTLED)

    def _judge_answer(self, stop: str, outputs: list[Output], cell: Cell) -> None:
        ends = [each for each in outputs if isinstance(each, (Error, TimedOut, Died))]
        cell.said = ", ".join(_said(each) for each in ends) or ("nobody there" if stop == "gone" else "ok")
        if stop == "gone":
            return
        way = self.way
        match ends:
            case [TimedOut()] if stop == "limit" or (stop == "interrupt" and way.is_deaf):
                pass
            case [Error(name)] if stop in ("interrupt", "cancel") and name in (
                *INTERRUPTS,
                GOES_ON_AS.get(self.name, ""),
            ):
                pass
            case [Died()] if stop == "crash" or (stop == "cancel" and way.is_deaf):
                pass
            case _:
                cell.wrong.append(f"the answer is {cell.said}")
        if (
            way.lives
            and stop != "crash"
            and not any(SLEEP in each.text for each in outputs if isinstance(each, Notice))
        ):
            cell.wrong.append("the answer does not name what lives on")

    def _judge_state(self, stop: str, cell: Cell) -> None:
        beat = self.folder / "beat"
        before = beat.stat().st_size if beat.exists() else 0
        probe: Execution = self.sandbox.run_code(PROBE)
        time.sleep(BEAT)
        cell.ran_on += ["a fork"] if beat.exists() and beat.stat().st_size > before else []
        if (self.folder / "went_on").exists():
            cell.ran_on.append("the next line")
        if not isinstance(probe.value, list):
            cell.wrong.append(f"the next call: {probe!r}")
            return
        x, y, programs = probe.value
        cell.ran_on += programs
        cell.kept = " ".join(name for name, value in (("x", x), ("y", y)) if value is not None) or "nothing"
        is_killed = stop == "crash" or (self.way.is_deaf and stop != "crash")
        expected = "x" if is_killed or self.way.is_whole else "x y"
        if cell.kept != expected:
            cell.wrong.append(f"kept {cell.kept}, not {expected}")
        meant = [SLEEP] if self.way.lives and stop != "crash" else []
        meant += ["the next line"] if self.way.goes_on and self.name not in GOES_ON_AS and stop != "crash" else []
        if sorted(cell.ran_on) != sorted(meant):
            cell.wrong.append(f"ran on: {cell.ran_on}")
        if probe.error or probe.stderr or probe.notes:
            cell.wrong.append(f"the next call says {probe.error or ''}{probe.stderr}{probe.notes}")


def _said(end: Error | TimedOut | Died) -> str:
    match end:
        case Error(name):
            return name
        case TimedOut():
            return "time limit" if end.state_kept else "time limit, variables lost"
        case Died():
            return "died, restored" if end.variables and end.variables.kept else "died, variables lost"


def wait_long() -> None:
    """Wait for longer than any run."""
    threading.Event().wait(3)


def row(name: str, stops: Sequence[str] = STOPS, runtime: Runtime | None = None) -> dict[str, Cell]:
    """Return the row of one way."""
    cells = {}
    with (
        tempfile.TemporaryDirectory(prefix="agent-tools-stops-") as folder,
        Sandbox(work_dir=folder, hostcalls=[wait_long], runtime=runtime) as sandbox,
    ):
        trial = Trial(name, sandbox)
        for stop in stops:
            cells[stop] = trial.cell(stop)
    return cells


def main() -> int:
    """Make the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="words of the ways, or stops")
    parser.add_argument("--at-once", type=int, default=2, help="sandboxes (default: 2)")
    parser.add_argument("--details", action="store_true", help="what ran on and was kept, in every cell")
    asked = parser.parse_args()
    stops = tuple(each for each in STOPS if each in asked.only) or STOPS
    words = [each for each in asked.only if each not in STOPS]
    names = [name for name in WAYS if not words or any(word in name for word in words)]
    began = time.monotonic()
    wrong: list[str] = []
    print(f"{'':<22}" + "".join(f"{stop:<30}" for stop in stops))
    with ThreadPoolExecutor(asked.at_once) as pool:
        for name, cells in zip(names, pool.map(lambda name: row(name, stops), names)):
            shown = []
            for stop, cell in cells.items():
                mark = "WRONG " if cell.wrong else ""
                shown.append(f"{mark}{cell.said}; {cell.kept}"[:28])
                wrong += [f"{name} / {stop} ({cell.seconds:.1f} s): {each}" for each in cell.wrong]
                if asked.details:
                    told = f"{cell.said}; ran on {cell.ran_on}; kept {cell.kept}; {cell.seconds:.1f} s"
                    print(f"  {name} / {stop}: {told}; {'; '.join(cell.wrong) or 'right'}")
            print(f"{name:<22}" + "".join(f"{each:<30}" for each in shown), flush=True)
    print(
        f"\n{len(names) * len(stops)} cells in {time.monotonic() - began:.0f} s, {len(wrong)} wrong", *wrong, sep="\n"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
