"""The tool on a real sandbox: every claim of its documentation page, and what callers lean on."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from agent_tools.machine.owner import Owner
from agent_tools.results.execution import Stream
from agent_tools.tools import TOOL_REGISTRY, CodeInterpreter, InvalidParams, ToolServiceError

pytestmark = pytest.mark.docker
CSV = "date,value\n" + "".join(f"2024-01-{day:02d},{day * day}\n" for day in range(1, 32))


def test_basic_usage(shared_tool: CodeInterpreter) -> None:
    assert shared_tool.call(params='{"code": "print(2 + 2)"}') == "stdout:\n\n```\n4\n\n```"


def test_it_is_registered_under_its_name() -> None:
    assert TOOL_REGISTRY["code_interpreter"] is CodeInterpreter


def test_data_analysis_with_a_file_and_a_figure(fresh_tool: CodeInterpreter, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(CSV)
    code = """
import pandas as pd
import matplotlib.pyplot as plt

df = pd.read_csv('data.csv')
print(df.head())
plt.figure(figsize=(10, 6))
plt.plot(df['date'], df['value'])
plt.title('Data Over Time')
plt.savefig('plot.png')
plt.show()
"""
    result = fresh_tool.call(params=json.dumps({"code": code}), files=[str(tmp_path / "data.csv")], timeout=60)
    assert result.startswith("stdout:\n\n```\n         date  value\n0  2024-01-01      1\n")
    path = Path(result.split("![fig-001](")[1].rstrip(")"))
    assert path.parent == Path(fresh_tool.work_dir)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert (Path(fresh_tool.work_dir) / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_variables_persist_between_calls(shared_tool: CodeInterpreter) -> None:
    shared_tool.call(params='{"code": "x = 42"}')
    assert shared_tool.call(params='{"code": "print(x)"}') == "stdout:\n\n```\n42\n\n```"


def test_a_time_out_reads_as_documented_and_that_of_the_configuration_holds(
    new_tool: Callable[..., CodeInterpreter],
) -> None:
    patient = new_tool(timeout=2, limits={"interrupt_grace": 20.0})  # of which only a busy machine makes use
    result = patient.call(params='{"code": "import time; time.sleep(100)"}', timeout=1)
    assert result.startswith("error:\n\n```\nTimeout: Code execution exceeded the time limit.\n")
    assert "variables are kept" in result
    started = time.monotonic()
    result = patient.call("import time; time.sleep(60)")
    assert "Timeout:" in result
    assert time.monotonic() - started < 10


def test_the_users_error_is_text_and_not_an_exception(shared_tool: CodeInterpreter) -> None:
    result = shared_tool.call(params='{"code": "1/0"}')
    assert result.startswith("error:\n\n```\n")
    assert "ZeroDivisionError: division by zero" in result
    assert "line 1" in result
    assert "/opt/" not in result
    assert "site-packages" not in result


RECURSION = """
import sys
sys.setrecursionlimit({limit})
def first(n):
    return second(n)
def second(n):
    return first(n + 1)
try:
    first(0)
finally:
    sys.setrecursionlimit(1000)
"""


@pytest.mark.parametrize("limit", [1_000, 100_000])
def test_an_endless_recursion_is_told_in_a_few_lines(shared_tool: CodeInterpreter, limit: int) -> None:
    execution = shared_tool.run(RECURSION.format(limit=limit), timeout=20)
    assert execution.error
    assert execution.error.name == "RecursionError"
    assert len(execution.error.text) < 2_000
    left_out = [
        int(count) for count in re.findall(r"(?:first|second) at line \d \((\d+) times\)", execution.error.text)
    ]
    assert len(left_out) == 2
    assert sum(left_out) > limit - 100
    assert execution.error.text.count("return first(n + 1)") >= 3


def test_an_error_that_another_error_caused_is_shown_at_its_own_line(shared_tool: CodeInterpreter) -> None:
    error = shared_tool.run("try:\n    {}['a']\nexcept KeyError:\n    1/0").error
    assert error
    assert "----> 2     {}['a']" in error.text
    assert "----> 4     1/0" in error.text
    assert "During handling of the above exception" in error.text


CONFIGURE = "import logging.config; logging.config.dictConfig({'version': 1, 'handlers': {'a': {'class': 'no.Such'}}})"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("pd.DataFrame({'a': [1]})['sales']", "KeyError: 'sales'"),
        (
            CONFIGURE,
            "ValueError: Unable to configure handler 'a'\n"
            "(after ValueError: Cannot resolve 'no.Such': No module named 'no')",
        ),
        ("raise KeyError('a') from ValueError('b')", "KeyError: 'a'\n(after ValueError: b)"),
        ("raise KeyError('a') from ValueError()", "KeyError: 'a'\n(after ValueError)"),
    ],
)
def test_earlier_errors_inside_of_a_library_are_a_line_each_unless_quoted(
    shared_tool: CodeInterpreter, code: str, told: str
) -> None:
    error = shared_tool.run(code).error
    assert error
    assert error.text.rstrip().endswith(f"\n\n{told}")
    assert error.text.count("Traceback (most recent call last)") == 1


def test_an_error_of_a_circle_of_causes_is_told(shared_tool: CodeInterpreter) -> None:
    error = shared_tool.run("a, b = ValueError('a'), ValueError('b')\na.__cause__, b.__cause__ = b, a\nraise a").error
    assert error
    assert error.text.rstrip().endswith("ValueError: a\n(after ValueError: b)")


def test_no_output_reads_as_finished(shared_tool: CodeInterpreter) -> None:
    assert shared_tool.call("y = 1") == "Finished execution."


def test_blank_code_starts_nothing(new_tool: Callable[..., CodeInterpreter]) -> None:
    tool = new_tool()
    assert tool.call("  \n") == ""
    assert tool.sandbox is None


def test_preinstalled_libraries_import(shared_tool: CodeInterpreter) -> None:
    names = [
        "numpy",
        "pandas",
        "matplotlib",
        "seaborn",
        "sklearn",
        "scipy",
        "sympy",
        "openpyxl",
        "PIL",
        "requests",
        "tqdm",
    ]
    assert shared_tool.call(f"import {', '.join(names)}\nprint('all')", timeout=60) == "stdout:\n\n```\nall\n\n```"


def test_well_known_names_need_no_import(shared_tool: CodeInterpreter) -> None:
    code = "print(np.arange(3), pd.Series([1]).sum(), type(plt).__name__, sns.__name__, solve(Eq(symbols('q'), 2)))"
    assert "[0 1 2] 1 module seaborn [2]" in shared_tool.call(code, timeout=60)


def test_params_of_every_kind(shared_tool: CodeInterpreter) -> None:
    for params in ({"code": "6*7"}, '{"code": "6*7"}', "{code: '6*7'}", "```python\n6*7\n```", "6*7"):
        assert shared_tool.call(params) == "execute_result:\n\n```\n42\n```"


def test_unknown_keyword_arguments_are_accepted(shared_tool: CodeInterpreter) -> None:
    assert "42" in shared_tool.call("42", messages=[], lang="zh")


def test_params_that_cannot_be_used_are_refused_with_advice(shared_tool: CodeInterpreter) -> None:
    with pytest.raises(InvalidParams, match="has no 'code'"):
        shared_tool.call("{}")
    with pytest.raises(InvalidParams, match="timeout"):
        shared_tool.call("1", timeout=-1)
    with pytest.raises(InvalidParams, match="list of paths"):
        shared_tool.call("1", files="data.csv")


def test_the_static_url_is_used_for_figures(shared_tool: CodeInterpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("M6_CODE_INTERPRETER_STATIC_URL", "http://localhost:8080/static")
    result = shared_tool.call("plt.plot([1])\nplt.show()", timeout=60)
    assert "![fig-001](http://localhost:8080/static/" in result


def test_figures_are_numbered_from_one_in_each_call(shared_tool: CodeInterpreter) -> None:
    for _ in range(2):
        result = shared_tool.call("for n in range(2):\n    plt.figure()\n    plt.plot([n, 1])\nplt.show()", timeout=60)
        assert "![fig-001](" in result
        assert "![fig-002](" in result
        assert "fig-003" not in result


def test_a_figure_shown_twice_is_one_figure(shared_tool: CodeInterpreter) -> None:
    execution = shared_tool.run("fig = plt.figure()\nplt.plot([3, 1, 2])\nfig", timeout=60)
    assert len(execution.figures) == len(set(execution.figures)) >= 1
    assert all(Path(path).exists() for path in execution.figures)


def test_fences_in_the_output_cannot_close_ours(shared_tool: CodeInterpreter) -> None:
    result = shared_tool.call("print('```\\nstdout:\\n````')")
    assert result == "stdout:\n\n`````\n```\nstdout:\n````\n\n`````"


def test_progress_bars_and_escapes_are_folded_away(shared_tool: CodeInterpreter) -> None:
    code = "print('\\x1b[31m10%\\r50%\\r100%\\x1b[0m\\u202e\\x00')"
    assert shared_tool.call(code) == "stdout:\n\n```\n100%\\u202e\n\n```"


def test_streaming_outputs_come_before_the_code_ends(shared_tool: CodeInterpreter) -> None:
    stream = shared_tool.stream("print('now\\n', end='', flush=True)\nimport time\ntime.sleep(60)")
    assert next(stream) == Stream("stdout", "now\n")
    stream.close()


def test_new_and_changed_files_are_listed(fresh_tool: CodeInterpreter) -> None:
    fresh_tool.call("open('old.txt', 'w').write('1')")
    execution = fresh_tool.run(
        "import os\nopen('old.txt', 'w').write('22')\nos.mkdir('d')\nopen('d/new.txt', 'w').write('333')"
    )
    assert [(change.name, change.size, change.is_new) for change in execution.changes] == [
        ("d/new.txt", 3, True),
        ("old.txt", 2, False),
    ]


def test_a_file_that_cannot_be_had_is_told(shared_tool: CodeInterpreter) -> None:
    result = shared_tool.call("print('ran')", files=["/no/such/file.csv"])
    assert result.startswith("files:\n\n```\n/no/such/file.csv is not available: no such file or directory\n```")
    assert "ran" in result


def test_a_taken_name_gets_a_number_and_the_result_tells(fresh_tool: CodeInterpreter, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "data.csv").write_text(folder)
    result = fresh_tool.call(
        "print(open('data.csv').read(), open('data-1.csv').read())",
        files=[str(tmp_path / "a" / "data.csv"), str(tmp_path / "b" / "data.csv")],
    )
    assert f"{tmp_path}/b/data.csv is available as data-1.csv" in result
    assert "a b" in result


def test_the_codes_edits_of_a_staged_file_survive_the_next_call(fresh_tool: CodeInterpreter, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("original")
    fresh_tool.call("open('data.csv', 'w').write('edited')", files=[str(tmp_path / "data.csv")])
    assert "edited" in fresh_tool.call("print(open('data.csv').read())", files=[str(tmp_path / "data.csv")])


def test_acall_runs_beside_the_event_loop(shared_tool: CodeInterpreter) -> None:
    async def main() -> str:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        task = asyncio.create_task(tick())
        answer = await shared_tool.acall("import time\ntime.sleep(0.5)\nprint('done')")
        task.cancel()
        assert ticks > 5
        return answer

    assert asyncio.run(main()) == "stdout:\n\n```\ndone\n\n```"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_cancelling_acall_interrupts_the_code_and_keeps_variables(shared_tool: CodeInterpreter, backend: str) -> None:
    async def main() -> None:
        with anyio.move_on_after(1) as scope:
            await shared_tool.acall("kept = 1\nimport time\ntime.sleep(60)")
        assert scope.cancelled_caught

    started = time.monotonic()
    anyio.run(main, backend=backend)
    assert time.monotonic() - started < 10
    assert "1" in shared_tool.call("kept")


def test_eight_threads_on_one_instance_get_their_own_answers(shared_tool: CodeInterpreter) -> None:
    answers: dict[int, str] = {}

    def work(number: int) -> None:
        answers[number] = shared_tool.call(f"print({number})")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: f"stdout:\n\n```\n{number}\n\n```" for number in range(8)}


def test_instances_do_not_share_variables(shared_tool: CodeInterpreter, fresh_tool: CodeInterpreter) -> None:
    shared_tool.call("secret = 1")
    assert shared_tool.sandbox != fresh_tool.sandbox
    assert "NameError" in fresh_tool.call("secret")


def test_a_dropped_instance_is_cleaned_up(docker_runtime: object, docker_engine: object, work_dir: Path) -> None:
    tool = CodeInterpreter({"work_dir": str(work_dir)}, runtime=docker_runtime)  # type: ignore[arg-type]
    tool.call("1")
    sandbox = tool.sandbox
    del tool
    gc.collect()
    docker_runtime.settle()  # type: ignore[attr-defined]  # the engine removes it behind the caller
    left = [found for found, _ in docker_engine.strays(Owner.current().labels)]  # type: ignore[attr-defined]
    assert sandbox not in left


def test_close_and_call_again_starts_afresh(fresh_tool: CodeInterpreter) -> None:
    fresh_tool.call("x = 1")
    fresh_tool.close()
    fresh_tool.close()
    assert fresh_tool.sandbox is None
    assert "NameError" in fresh_tool.call("x")


def test_a_missing_runtime_is_an_error_and_not_a_fall_back(new_tool: Callable[..., CodeInterpreter]) -> None:
    tool = new_tool(runtime="no-such-runtime")
    with pytest.raises(ToolServiceError, match="no-such-runtime") as caught:
        tool.call("1")
    assert caught.value.code == "SandboxStartError"


def test_a_missing_image_says_what_to_do(new_tool: Callable[..., CodeInterpreter]) -> None:
    with pytest.raises(ToolServiceError, match="agent-tools image build"):
        new_tool(image="agent-tools:no-such-tag").call("1")


def test_an_image_that_is_not_ours_says_why_it_failed(new_tool: Callable[..., CodeInterpreter]) -> None:
    tool = new_tool(image="agent-tools-foreign:test")
    _make_foreign_image(tool)
    with pytest.raises(ToolServiceError, match=r"did not start|cannot start"):
        tool.call("1")


def _make_foreign_image(tool: CodeInterpreter) -> None:
    import io
    import tarfile

    engine = tool.as_sandbox._opening._open_runtime().engine
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        content = b"FROM scratch\nCOPY Dockerfile /\n"
        entry = tarfile.TarInfo("Dockerfile")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    archive.seek(0)
    list(engine.build(archive, "agent-tools-foreign:test", {}))  # type: ignore[attr-defined]


def test_options_that_would_break_the_isolation_are_refused(work_dir: Path) -> None:
    make = partial(CodeInterpreter)
    for option in ({"privileged": True}, {"network": "host"}, {"user": "0"}, {"mounts": []}, {"pid_mode": "host"}):
        with pytest.raises(InvalidParams, match="isolation"):
            make({"work_dir": str(work_dir), **option})


def test_a_misspelt_option_is_refused_with_the_right_name() -> None:
    with pytest.raises(InvalidParams, match="Did you mean 'memory'"):
        CodeInterpreter({"memmory": 1})


@pytest.mark.parametrize("folder", ["/", "/etc", "/var/run", "/proc", "~"])
def test_an_unsafe_work_dir_is_refused(new_tool: Callable[..., CodeInterpreter], folder: str) -> None:
    with pytest.raises(InvalidParams, match="work_dir"):
        new_tool(work_dir=folder).call("1")


def test_a_sandbox_can_be_started_ahead_of_the_code(tool: CodeInterpreter) -> None:
    assert tool.sandbox is None
    tool.start()
    started = tool.sandbox
    assert started
    assert tool.run("print(1)").stdout == "1\n"
    assert tool.sandbox == started


def test_a_model_reads_what_is_displayed_for_eyes(shared_tool: CodeInterpreter) -> None:
    code = """from IPython.display import HTML, Markdown
display(Markdown('# Sales'))
frame = pd.DataFrame({'name': ['Ada', 'Bo'], 'x': [1.25, 22.5]})
display(HTML('<table>...</table>'))
frame.style.format(precision=1)"""
    answer = shared_tool.call(code)
    assert "# Sales" in answer
    assert "<table>...</table>" in answer
    assert "0\tAda\t1.2\n1\tBo\t22.5" in answer
    assert "object" not in answer
