"""The public seam on plain processes: its life, its folder, its configuration and its functions."""

from __future__ import annotations

import gc
import importlib.util
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import nbformat
import pytest

from agent_tools import AsyncSandbox, Sandbox
from agent_tools.engines.engine import EngineContainer
from agent_tools.errors import InvalidParams, KernelDied, SessionBusy, SessionClosed
from agent_tools.guest.processes import processes
from agent_tools.machine.event_loop import join, leave
from agent_tools.results.execution import Died, Output, Restarted, Stream
from agent_tools.results.variables import RestorePoint
from agent_tools.runtime.kernel.channel import KernelChannel
from agent_tools.runtime.runtime import Runtime
from agent_tools.runtime.session.session import BranchSession
from tests.waiting import until

AWAIT_KERNEL = KernelChannel.await_kernel


@pytest.fixture
def sandbox(process_runtime: Runtime) -> Iterator[Sandbox]:
    with Sandbox(runtime=process_runtime) as sandbox:
        yield sandbox


def test_nothing_starts_before_it_is_used(process_runtime: Runtime) -> None:
    sandbox = Sandbox(runtime=process_runtime)
    assert not sandbox.is_alive
    assert sandbox.container is None
    sandbox.interrupt()
    sandbox.restart()
    sandbox.reset()
    sandbox.close()


def test_its_own_folder_goes_with_it_and_no_two_share_one(process_runtime: Runtime) -> None:
    first, second = Sandbox(runtime=process_runtime), Sandbox(runtime=process_runtime)
    first.run_code("open('mine', 'w').write('1')")
    folders = first.workspace.path, second.workspace.path
    assert folders[0] != folders[1]
    assert second.list_files() == []
    first.close()
    second.close()
    assert not any(folder.exists() for folder in folders)


CHILDREN: dict[str, Callable[[Sandbox], object]] = {
    "closes it": Sandbox.close,
    "leaves its block": lambda sandbox: sandbox.__exit__(None, None, None),
    "empties it": Sandbox.reset,
    "ends": lambda _: None,
    "uses it": lambda sandbox: sandbox.workspace.save_picture(b"", "f"),
}


@pytest.mark.parametrize("how", CHILDREN)
def test_a_forked_child_leaves_the_sandbox_and_its_folder_to_its_parent(sandbox: Sandbox, how: str) -> None:
    sandbox.run_code("x = 1; open('f', 'w').write('data')")
    at_exit = sandbox._opening._finalizer
    pid = os.fork()
    if pid == 0:
        with ExitStack() as stack:
            code = [1]
            stack.callback(lambda: os._exit(code[0]))
            CHILDREN[how](sandbox)
            sandbox.close()
            assert at_exit
            at_exit()
            code[0] = 0
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert sandbox.run_code("import os; x, open('f').read(), os.listdir()").value == (1, "data", ["f"])


def test_code_runs_where_the_extra_for_functions_is_not_installed(
    process_runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "pydantic" else find(name, *rest)
    )
    monkeypatch.setattr("agent_tools.sandbox.opening._host_side", pytest.fail)
    with Sandbox(runtime=process_runtime) as sandbox:
        assert sandbox.run_code("6 * 7").value == 42


def test_a_folder_that_was_given_stays(process_runtime: Runtime, work_dir: Path) -> None:
    with Sandbox({"work_dir": str(work_dir)}, runtime=process_runtime) as sandbox:
        sandbox.write_file("kept", "1")
    assert (work_dir / "kept").read_text() == "1"


def test_one_that_is_dropped_takes_its_folder_and_its_container_along(process_runtime: Runtime) -> None:
    sandbox = Sandbox(runtime=process_runtime)
    sandbox.start()
    folder, key = sandbox.workspace.path, sandbox.id
    del sandbox
    gc.collect()
    assert not folder.exists()
    assert process_runtime.find(key) is None


def test_after_close_the_next_use_starts_another(sandbox: Sandbox) -> None:
    sandbox.run_code("x = 1")
    assert sandbox.is_alive
    sandbox.close()
    assert not sandbox.is_alive
    assert sandbox.run_code("x").error is not None


def test_variables_come_in_whatever_the_code_calls_globals(sandbox: Sandbox) -> None:
    sandbox.run_code("globals = 3")
    assert sandbox.run_code("x + globals", variables={"x": 1}).value == 4


def test_variables_come_in_and_outputs_are_told_as_they_come(sandbox: Sandbox) -> None:
    seen: list[Output] = []
    execution = sandbox.run_code(
        "print(name)\ncount + 1", variables={"name": "ann", "count": 41}, on_output=seen.append
    )
    assert execution.stdout == "ann\n"
    assert execution.result is not None
    assert execution.result.text == "42"
    assert seen[0] == Stream("stdout", "ann\n")
    assert sandbox.run_code("len(In)").result.text == "3"  # type: ignore[union-attr]  # setting them is no cell


def test_runs_of_several_threads_each_have_their_own_variables(sandbox: Sandbox) -> None:
    def passed(number: int) -> object:
        return sandbox.run_code("x", variables={"x": number}).value

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(passed, range(40))) == list(range(40))


def test_code_that_does_not_run_sets_no_variables(sandbox: Sandbox) -> None:
    cancelled = threading.Event()
    cancelled.set()
    unclear = sandbox.run_code("```\n1\n```\nor\n```\n2\n```", variables={"x": 1})
    waiting = sandbox.run_code("x = 2", variables={"x": 2}, cancelled=cancelled)
    with pytest.raises(InvalidParams):
        sandbox.run_code("x = 3", variables={"x": 3}, timeout=-1)
    assert [each.error.name for each in (unclear, waiting) if each.error] == ["UnclearCode", "KeyboardInterrupt"]
    assert sandbox.run_code("'x' in globals()").value is False


def test_variables_that_the_kernel_cannot_set_are_an_error_of_the_run(sandbox: Sandbox) -> None:
    sandbox.run_code("import sys; kept, sys.modules['json'] = sys.modules['json'], None")
    failed = sandbox.run_code("ran = True", variables={"secret": 1})
    assert failed.error
    assert failed.error.text.startswith("ModuleNotFoundError: the variables could not be set: ")
    assert sandbox.run_code("sys.modules['json'] = kept; 'ran' in globals()").value is False
    assert sandbox.run_code("x", variables={"x": 1}).value == 1


def test_an_on_output_that_fails_ends_the_run_and_keeps_the_variables(sandbox: Sandbox) -> None:
    sandbox.run_code("x = 7")

    def fail(_output: Output) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        sandbox.run_code("import time\nprint(1)\ntime.sleep(600)", on_output=fail)
    assert sandbox.run_code("x").result.text == "7"  # type: ignore[union-attr]


def test_files_that_code_has_made_are_looked_for_when_they_are_read(sandbox: Sandbox) -> None:
    execution = sandbox.run_code("for name in 'ab': open(name, 'w').close()")
    sandbox.remove("a")
    assert [change.name for change in execution.changes] == ["b"]
    assert sandbox.run_code("1").changes == ()
    assert [change.name for change in execution.changes] == ["b"]


@pytest.mark.parametrize("leave", [Sandbox.close, Sandbox.reset])
def test_files_that_code_has_made_are_known_when_their_folder_is_gone(
    process_runtime: Runtime, leave: Callable[[Sandbox], None]
) -> None:
    with Sandbox(runtime=process_runtime) as sandbox:
        execution = sandbox.run_code("open('made', 'w').close()")
        leave(sandbox)
        assert ([change.name for change in execution.changes], execution.changes_complete) == (["made"], True)


def test_of_two_runs_that_wait_for_one_another_each_has_its_own_files(sandbox: Sandbox) -> None:
    with ThreadPoolExecutor() as pool:
        code = "open('{0}', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)\nopen('{0}2', 'w').close()"
        sandbox.run_code("import os, time")
        first = pool.submit(sandbox.run_code, code.format("a"))
        until(lambda: sandbox.exists("a"))
        second = pool.submit(sandbox.run_code, code.format("b"))
        sandbox.write_file("go", "")
        first.result()
        assert [change.name for change in second.result().changes] == ["b", "b2"]


def test_the_files_that_code_makes_are_told_and_figures_are_not_saved(sandbox: Sandbox) -> None:
    execution = sandbox.run_code("open('made', 'w').write('1')")
    assert [(change.name, change.is_new) for change in execution.changes] == [("made", True)]
    assert execution.saved == ()


def test_functions_are_added_while_it_runs_and_are_there_in_a_fresh_kernel(sandbox: Sandbox) -> None:
    def double(number: int) -> int:
        return 2 * number

    def greet(name: str) -> str:
        return f"hello {name}"

    sandbox.run_code("x = 1")
    sandbox.add_functions([double])
    sandbox.add_functions([greet])
    assert sandbox.run_code("await double(x), await greet('ann')").result.text == "(2, 'hello ann')"  # type: ignore[union-attr]
    sandbox.restart()
    assert sandbox.run_code("await double(4)").result.text == "8"  # type: ignore[union-attr]
    with pytest.raises(TypeError, match="double"):
        sandbox.add_functions([double])


def test_functions_are_added_to_the_kernel_that_follows_an_ended_one(process_runtime: Runtime) -> None:
    def double(number: int) -> int:
        return 2 * number

    with Sandbox({"checkpoint": False}, runtime=process_runtime) as sandbox:
        sandbox.run_code("import os, threading\nthreading.Timer(0.1, os._exit, [3]).start()")
        session = sandbox._opening.session()
        until(lambda: not session.is_busy and not session._sandbox.kernel.is_alive())
        sandbox.add_functions([double])
        assert sandbox.run_code("await double(4)").result.text == "8"  # type: ignore[union-attr]


def test_its_configuration_makes_another_like_it(process_runtime: Runtime, work_dir: Path) -> None:
    sandbox = Sandbox({"work_dir": work_dir, "memory": 2**30, "limits": {"timeout": 5}, "packages": ("six",)})
    config = sandbox.to_config()
    assert config == {"work_dir": str(work_dir), "memory": 2**30, "limits": {"timeout": 5}, "packages": ["six"]}
    assert Sandbox.from_config(config).options == sandbox.options
    assert pickle.loads(pickle.dumps(sandbox)).options == sandbox.options
    assert pickle.loads(pickle.dumps(AsyncSandbox(config))).sync.options == sandbox.options
    assert pickle.loads(pickle.dumps(sandbox)).id != sandbox.id


def test_host_functions_are_no_configuration(process_runtime: Runtime) -> None:
    sandbox = Sandbox(hostcalls={"f": lambda payload: payload}, runtime=process_runtime)
    with pytest.raises(InvalidParams, match="functions"):
        sandbox.to_config()


@pytest.mark.parametrize("most", [0, -1, True, 1.5, "many"])
def test_a_bound_on_output_is_a_positive_number(sandbox: Sandbox, most: object) -> None:
    with pytest.raises(InvalidParams, match="max_output"):
        sandbox.run_command("true", max_output=most)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", ["a\0b", "\ud800", "#" * 2_000_000])
def test_code_that_cannot_run_is_refused(sandbox: Sandbox, code: str) -> None:
    with pytest.raises(InvalidParams):
        sandbox.run_code(code)


def test_a_checkpoint_that_does_not_go_on_in_time_may_do_so_later(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.run_code("x = 1")
    mark = sandbox.checkpoint()

    def too_late(channel: KernelChannel, *arguments: Any, **options: Any) -> None:
        AWAIT_KERNEL(channel, *arguments, **options)
        raise KernelDied("it was slow")

    with monkeypatch.context() as patch:
        patch.setattr(KernelChannel, "await_kernel", too_late)
        _does_not_go_back(sandbox, mark, "it was slow")
    assert _value_after_a_death(sandbox) == 1


def test_where_a_checkpoint_ends_instead_of_going_on_an_earlier_one_does(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.run_code("x = 1")
    kernel, init = sandbox.run_code("import os; x = 2; [os.getpid(), os.getppid()]").value
    mark = sandbox.checkpoint()
    beside = {pid: each for pid, each in processes().items() if each.parent == init and pid != kernel}
    latest = max(beside, key=lambda pid: (beside[pid].started, pid))  # of some that started in one tick
    os.kill(latest, signal.SIGSTOP)  # so that it has not gone on when it is killed

    def killed(channel: KernelChannel, *arguments: Any, **options: Any) -> None:
        until(lambda: kernel not in processes())  # that it is to replace
        os.kill(latest, signal.SIGKILL)
        AWAIT_KERNEL(channel, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(KernelChannel, "await_kernel", killed)
        _does_not_go_back(sandbox, mark, "it failed to start: its process had ended")
    assert _value_after_a_death(sandbox) == 1


def _does_not_go_back(sandbox: Sandbox, mark: RestorePoint, reason: str) -> None:
    with pytest.raises(KernelDied, match=rf"Restoring the checkpoint failed \({reason}\). The next run"):
        sandbox.rollback(mark)


def _value_after_a_death(sandbox: Sandbox) -> object:
    """Return `x` as the code after the next finds it; the next is told of a death."""
    assert isinstance(sandbox.run_code("x").outputs[0], (Died, Restarted))
    return sandbox.run_code("x").value


class Odd(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


class Own(BaseException):
    pass


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (SystemExit(2), "SystemExit: 2"),
        (Own("left"), "Own: left"),
        (Odd(), "Odd: its text could not be made (ZeroDivisionError)"),
        (StopIteration(), "RuntimeError: "),
    ],
)
def test_whatever_a_host_function_raises_is_an_error_of_its_call(
    process_runtime: Runtime, raised: BaseException, told: str, is_async: bool
) -> None:
    def fails(number: int) -> int:
        raise raised

    async def fails_async(number: int) -> int:
        raise raised

    def fine(number: int) -> int:
        return number

    name = "fails_async" if is_async else "fails"
    with Sandbox(hostcalls=[fails, fails_async, fine], runtime=process_runtime) as sandbox:
        (call,) = sandbox.run_code(f"await {name}(1)", timeout=20).host_calls
        assert call.status == "error"
        assert call.error.startswith(told)
        assert sandbox.run_code("await fine(2)", timeout=20).value == 2


@pytest.mark.parametrize("what", ["restart", "reset"])
def test_a_host_function_cannot_replace_the_kernel_that_called_it(process_runtime: Runtime, what: str) -> None:
    def again() -> str:
        with pytest.raises(SessionBusy):
            getattr(sandbox, what)()
        return "refused"

    with Sandbox(hostcalls=[again], runtime=process_runtime) as sandbox:
        assert sandbox.run_code("x = await again(); x", timeout=20).value == "refused"
        assert sandbox.run_code("x").value == "refused"


def test_a_use_while_it_is_closed_begins_anew_in_a_folder_of_its_own(
    process_runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Sandbox(runtime=process_runtime) as sandbox:
        sandbox.run_code("x = 1")
        first = sandbox.workspace.path
        finalizer = sandbox._opening._finalizer
        assert finalizer

        def used_meanwhile() -> None:
            assert sandbox.workspace.path != first
            finalizer()

        monkeypatch.setattr(sandbox._opening, "_finalizer", used_meanwhile)
        sandbox.close()
        assert sandbox.run_code("1 + 1").value == 2
        assert not first.exists()


@pytest.mark.parametrize(
    "use",
    [
        lambda sandbox: sandbox.run_code(3),
        lambda sandbox: sandbox.write_file("a", 3),
        lambda sandbox: sandbox.load("x.tar"),
        lambda sandbox: sandbox.rollback("mark"),
    ],
)
def test_an_argument_of_another_type_is_refused(sandbox: Sandbox, use: Callable[[Any], Any]) -> None:
    with pytest.raises(InvalidParams, match="give"):
        use(sandbox)


@pytest.mark.parametrize("name", ["checkpoint", "allow_private_urls"])
@pytest.mark.parametrize("value", ["no", "false", 0, 1])
def test_a_switch_is_true_or_false_and_no_text(name: str, value: object) -> None:
    with pytest.raises(InvalidParams, match="give True or False"):
        Sandbox({name: value})


def test_a_fresh_kernel_knows_nothing_and_goes_its_own_way(sandbox: Sandbox) -> None:
    sandbox.run_code("x = 1; open('a.txt', 'w').write('a'); import json; json.mark = 1")
    with sandbox.fresh_kernel() as fresh:
        assert fresh.run_code("'x' in globals(), open('a.txt').read()").value == (False, "a")
        assert fresh.run_code("import json; hasattr(json, 'mark')").value is False
        fresh.run_code("x = 2")
        assert isinstance(fresh.run_code("import os; os.kill(os.getpid(), 9)").error, Died)
        assert [each.run_code("x").value for each in (fresh, sandbox)] == [2, 1]
        with fresh.fork() as fork, fork.fresh_kernel() as second:
            assert fork.run_code("x").value == 2
            assert second.run_code("'x' in globals()").value is False
        fresh.restart()
        assert fresh.run_code("'x' in globals()").value is False


def test_a_fresh_kernel_needs_no_idle_one(sandbox: Sandbox) -> None:
    threads = "import threading; event = threading.Event(); threading.Thread(target=event.wait, daemon=True).start()"
    sandbox.run_code(threads)
    stop = threading.Event()
    running = sandbox.stream("print(1)\nevent.wait()", cancelled=stop)
    assert next(running).text == "1\n"
    with sandbox.fresh_kernel() as fresh:
        assert fresh.run_code("2 + 2").value == 4
    sandbox.cancel(stop)
    list(running)
    assert sandbox.run_code("'event' in globals()").value is True


def test_fresh_kernels_count_as_forks(process_runtime: Runtime) -> None:
    with (
        Sandbox(runtime=process_runtime, limits={"max_branches": 1}) as sandbox,
        sandbox.fresh_kernel(),
        pytest.raises(InvalidParams, match="max_branches"),
    ):
        sandbox.fresh_kernel()


def test_a_fresh_kernel_has_the_host_functions(process_runtime: Runtime) -> None:
    def double(number: int) -> int:
        return 2 * number

    def half(number: int) -> float:
        return number / 2

    with Sandbox(runtime=process_runtime, hostcalls=[double]) as sandbox, sandbox.fresh_kernel() as fresh:
        assert [each.run_code("await double(2)").value for each in (sandbox, fresh)] == [4, 4]
        with sandbox.fork() as fork:
            fork.add_functions([half])
            with fork.fresh_kernel() as second:
                assert second.run_code("await double(2) + await half(2)").value == 5
            assert "NameError" in str(fresh.run_code("await half(2)").error)


def test_a_fresh_kernel_ends_with_what_it_was_made_of(process_runtime: Runtime) -> None:
    with Sandbox(runtime=process_runtime, limits={"max_branches": 2}) as sandbox:
        fork = sandbox.fork()
        fresh = fork.fresh_kernel()
        fork.close()
        with pytest.raises(SessionClosed):
            fresh.run_code("1")
        sandbox.fork().fresh_kernel()  # there is room again


def test_a_fresh_kernel_continues_no_process_that_code_has_stopped(sandbox: Sandbox) -> None:
    sandbox.run_code("import os, signal, subprocess; p = subprocess.Popen(['sleep', '600'])")
    sandbox.run_code("p.send_signal(signal.SIGSTOP); os.waitid(os.P_PID, p.pid, os.WSTOPPED)")
    with ThreadPoolExecutor() as pool:
        made = [each.result() for each in [pool.submit(sandbox.fresh_kernel) for _ in range(4)]]
    assert [each.run_code("1").value for each in made] == [1] * 4
    assert sandbox.run_code("open(f'/proc/{p.pid}/stat').read().rpartition(')')[2].split()[0]").value == "T"
    for each in made:
        each.close()


def test_a_watcher_hears_of_output_and_of_the_end(sandbox: Sandbox) -> None:
    process = sandbox.start_command("echo a; read line", stdin=b"")
    heard = threading.Event()
    with process.watched(heard.set):
        process.write_stdin(b"x\n")
        while not process.is_over:
            assert heard.wait(60)
            heard.clear()
    assert process.result().stdout == b"a\n"


def test_a_session_is_a_notebook_of_its_last_runs(process_runtime: Runtime) -> None:
    with Sandbox(runtime=process_runtime, history=2) as sandbox:
        for code in ("a = 1", "print(a)", "```python\na + 1\n```"):
            sandbox.run_code(code)
        with sandbox.fork() as fork:
            fork.run_code("1/0")
            assert [cell["source"] for cell in fork.notebook()["cells"]] == [["a + 1"], ["1/0"]]
        notebook = sandbox.notebook()
    nbformat.validate(nbformat.from_dict(notebook))
    assert [cell["source"] for cell in notebook["cells"]] == [["print(a)"], ["a + 1"]]
    assert notebook["cells"][0]["outputs"] == [{"output_type": "stream", "name": "stdout", "text": ["1\n"]}]
    assert notebook["cells"][1]["outputs"][-1]["data"] == {"text/plain": ["2"]}


def test_code_that_was_cancelled_before_it_ran_is_no_cell_of_the_notebook(process_runtime: Runtime) -> None:
    cancelled = threading.Event()
    cancelled.set()
    with Sandbox(runtime=process_runtime, history=2) as sandbox:
        assert not sandbox.run_code("a = 1", cancelled=cancelled).ok
        assert sandbox.notebook()["cells"] == []


def test_a_notebook_needs_a_history(process_runtime: Runtime) -> None:
    with pytest.raises(InvalidParams, match="history=N"):
        Sandbox(runtime=process_runtime).notebook()
    for length in (-1, True, "5", 10**9):
        with pytest.raises(InvalidParams, match="history="):
            Sandbox(runtime=process_runtime, history=length)  # type: ignore[arg-type]


def test_a_sandbox_that_is_dropped_in_the_event_loop_is_closed_in_another_thread(process_runtime: Runtime) -> None:
    removed_in: list[str] = []
    remove = process_runtime.engine.remove

    def noted(container: EngineContainer) -> None:
        removed_in.append(threading.current_thread().name)
        remove(container)

    process_runtime.engine.remove = noted  # type: ignore[method-assign]
    sandboxes = [Sandbox(runtime=process_runtime, transport="stdio")]
    sandboxes[0].run_code("1")
    member = object()
    loop = join(member)
    loop.loop.call_soon_threadsafe(sandboxes.clear)
    until(lambda: removed_in)
    leave(loop, member)
    assert "agent-tools-events" not in removed_in


def test_a_fork_that_is_dropped_in_the_event_loop_is_closed_in_another_thread(
    process_runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed_in: list[str] = []
    close = BranchSession.close

    def noted(session: BranchSession) -> None:
        close(session)
        closed_in.append(threading.current_thread().name)

    monkeypatch.setattr(BranchSession, "close", noted)
    with Sandbox(runtime=process_runtime) as sandbox:
        forks, member = [sandbox.fork()], object()
        loop = join(member)
        loop.loop.call_soon_threadsafe(forks.clear)
        until(lambda: closed_in)
        leave(loop, member)
    assert "agent-tools-events" not in closed_in


@pytest.mark.parametrize("begin", [Sandbox.start, Sandbox.prepare_pool])
def test_a_sandbox_whose_image_is_being_built_can_be_closed(
    process_runtime: Runtime, begin: Callable[[Sandbox], object]
) -> None:
    builds, goes_on = threading.Event(), threading.Event()

    def build(_: object) -> str:
        builds.set()
        goes_on.wait()
        return "none"

    sandbox = Sandbox(runtime=(runtime := Runtime(process_runtime.engine, build)), pool=1)
    starting = threading.Thread(target=begin, args=(sandbox,))
    starting.start()
    try:
        assert builds.wait(20)
        closing = threading.Thread(target=sandbox.close, daemon=True)
        closing.start()
        closing.join(20)
        assert not closing.is_alive()
    finally:
        goes_on.set()
        starting.join()
        sandbox.close()
        runtime.close_all()
