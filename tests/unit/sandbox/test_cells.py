"""Cells on a plain process: they find what a notebook's cells find, though most of them take a shorter way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent_tools import Sandbox
from agent_tools.results.execution import Display, Error, Result, Stream, TimedOut
from agent_tools.runtime.runtime import Runtime


@pytest.fixture
def sandbox(process_runtime: Runtime) -> Iterator[Sandbox]:
    with Sandbox(runtime=process_runtime) as sandbox:
        sandbox.run_code("import asyncio")
        yield sandbox


def error_of(sandbox: Sandbox, code: str) -> tuple[str, str]:
    error = sandbox.run_code(code).error
    assert isinstance(error, Error)
    return error.name, error.value


# -- the event loop ---------------------------------------------------------------------------------------------------


def test_the_loop_runs_for_code_that_does_not_await(sandbox: Sandbox) -> None:
    assert sandbox.run_code("asyncio.get_event_loop().is_running()").value is True
    assert sandbox.run_code("asyncio.get_event_loop().run_until_complete(asyncio.sleep(0, 7))").value == 7


def test_a_cell_that_closes_its_loop_costs_no_variables(sandbox: Sandbox) -> None:
    sandbox.run_code("x = 5")
    assert sandbox.run_code(
        "loop = asyncio.get_event_loop(); loop.run_until_complete(asyncio.sleep(0)); loop.close()"
    ).ok
    assert sandbox.run_code("await asyncio.sleep(0)\nx").value == 5


@pytest.mark.parametrize("stop", ["loop.stop()", "loop.call_soon(loop.stop)", "loop.call_later(0.01, loop.stop)"])
def test_a_loop_that_is_stopped_costs_no_variables(sandbox: Sandbox, stop: str) -> None:
    sandbox.run_code(f"x = 5\nloop = asyncio.get_event_loop()\n{stop}\nNone")
    sandbox.run_code("import time; time.sleep(0.05)")
    sandbox.run_code("await asyncio.sleep(0)")
    assert sandbox.run_code("x").value == 5


def test_an_await_that_a_transformer_writes_is_awaited(sandbox: Sandbox) -> None:
    sandbox.run_code(
        "def wait(lines): return ['await ' + line if line.startswith('later') else line for line in lines]"
    )
    sandbox.run_code("get_ipython().input_transformers_post.append(wait)\nlater = asyncio.sleep")
    assert sandbox.run_code("later(0, 5)").value == 5
    sandbox.run_code("get_ipython().input_transformers_post.remove(wait)")


def test_what_a_task_of_an_earlier_cell_shows_is_seen_in_the_call_that_runs(sandbox: Sandbox) -> None:
    sandbox.run_code(
        "async def show():\n    await asyncio.sleep(0.05)\n    print('text')\n    display('picture')\n"
        "task = asyncio.create_task(show())"
    )
    assert sandbox.run_code("await task\nprint('end')").outputs == (
        Stream("stdout", "text\n"),
        Display({"text/plain": "'picture'"}),
        Stream("stdout", "end\n"),
    )


# -- errors that are shown --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shown",
    [
        "try:\n    1 / 0\nexcept Exception:\n    get_ipython().showtraceback()",
        "get_ipython().run_cell('1 / 0')\nNone",
        "class A:\n    def _repr_html_(self): 1 / 0\ndisplay(A())",
    ],
    ids=["by code", "by a cell within", "by a display"],
)
def test_an_error_that_does_not_end_the_code_is_text_in_its_place(sandbox: Sandbox, shown: str) -> None:
    done = sandbox.run_code(f"print('before')\n{shown}\nprint('after')")
    assert done.ok
    texts = [each.text for each in done.outputs if isinstance(each, Stream)]
    assert (texts[0], texts[-1]) == ("before\n", "after\n")
    assert "ZeroDivisionError: division by zero" in "".join(texts[1:-1])


def test_an_error_in_showing_the_result_ends_the_code(sandbox: Sandbox) -> None:
    sandbox.run_code("class A:\n    def __repr__(self): 1 / 0")
    assert error_of(sandbox, "A()")[0] == "ZeroDivisionError"


def test_an_error_that_cannot_be_told_is_told_with_its_place(sandbox: Sandbox) -> None:
    done = sandbox.run_code("class E(Exception):\n    def __str__(self): raise ValueError('in str')\nraise E")
    assert not done.ok
    assert "----> 3 raise E" in done.stderr


# -- names and texts --------------------------------------------------------------------------------------------------


def test_a_well_known_name_that_a_cell_defines_is_not_imported(sandbox: Sandbox) -> None:
    sandbox.run_code("def solve(n): return 0 if n == 0 else solve(n - 1)\nsymbols = ['A']\nfrom math import pi as Eq")
    assert sandbox.run_code("import sys; 'sympy' in sys.modules").value is False
    assert sandbox.run_code("math.floor(Eq)").value == 3


def test_a_well_known_name_brings_no_warning_of_its_own(sandbox: Sandbox) -> None:
    assert sandbox.run_code("x = 1 is 1; math.e").stderr.count("SyntaxWarning") == 1


def test_a_text_is_transformed_anew_where_it_may_mean_something_else(sandbox: Sandbox) -> None:
    code = "shell = get_ipython()\nshell.run_cell(c := 'ls')\nls = 5\nshell.run_cell(c)\nNone"
    assert Result({"text/plain": "5"}) in sandbox.run_code(code).outputs


def test_what_code_puts_into_a_module_does_not_stop_later_cells(sandbox: Sandbox) -> None:
    sandbox.run_code("import hashlib, tempfile\nkept = hashlib.sha1, tempfile.gettempdir")
    sandbox.run_code("hashlib.sha1 = tempfile.gettempdir = None")
    assert sandbox.run_code("hashlib.sha1, tempfile.gettempdir = kept\n1").value == 1


def test_a_thread_may_run_a_cell(sandbox: Sandbox) -> None:
    code = "import threading\nthread = threading.Thread(target=lambda: get_ipython().run_cell('print(1)'))\n"
    done = sandbox.run_code(f"{code}thread.start()\nthread.join()")
    assert (done.ok, done.stdout, done.stderr) == (True, "1\n", "")


# -- variables --------------------------------------------------------------------------------------------------------


def test_one_that_ends_the_process_that_saves_it_costs_itself_alone(sandbox: Sandbox) -> None:
    sandbox.run_code("import os\nclass Ends:\n    def __reduce__(self): os._exit(3)\na, ends, z = 1, Ends(), 2")
    report = sandbox.save(variables=True).variables
    assert {"a", "z"} <= set(report.kept)
    assert [(each.name, "exit code 3" in each.reason) for each in report.missing if each.name == "ends"] == [
        ("ends", True)
    ]


def test_names_that_are_no_text_are_passed_over(sandbox: Sandbox) -> None:
    sandbox.run_code("globals()[5] = 7\nx = 1")
    assert "x" in sandbox.save(variables=True).variables.kept
    sandbox.run_code("del globals()[5]")


# -- scripts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("magic", ["%%bash", "%%script sh"])
def test_a_script_that_takes_too_long_is_timed_out_like_any_code(sandbox: Sandbox, magic: str) -> None:
    sandbox.run_code("x = 5")
    done = sandbox.run_code(f"{magic}\nsleep 60", timeout=0.5)
    assert [each.state_kept for each in done.outputs if isinstance(each, TimedOut)] == [True]
    assert sandbox.run_code("x").value == 5


def test_a_script_that_fails_is_told_by_its_exit_code(sandbox: Sandbox) -> None:
    name, value = error_of(sandbox, "%%bash\nexit 3")
    assert name == "CalledProcessError"
    assert "exit status 3" in value
