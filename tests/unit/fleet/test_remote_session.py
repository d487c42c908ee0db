"""A session on another machine, as a `Sandbox` uses it."""

from __future__ import annotations

import asyncio
import errno
import io
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_tools import InvalidParams, Toolset
from agent_tools.errors import (
    CheckpointMissing,
    FileRejected,
    HostFull,
    PreludeError,
    SessionBusy,
    SessionClosed,
    SessionLost,
)
from agent_tools.results.execution import Died, HostCall, Omitted, Restarted, Stream
from agent_tools.runtime.host_calls.function import Policy
from tests.unit.fleet.conftest import Rig


def test_variables_live_from_run_to_run(rig: Rig) -> None:
    sandbox = rig.sandbox()
    assert sandbox.run_code("x = 41\nprint('hi')").outputs == (Stream("stdout", "hi\n"),)
    assert sandbox.run_code("x + 1").value == 42
    assert sandbox.is_alive
    assert not sandbox.is_busy


def test_outputs_come_while_the_code_runs_and_closing_early_interrupts_it(rig: Rig) -> None:
    sandbox = rig.sandbox()
    stream = sandbox.stream("x = 5\nprint('on\\n', end='', flush=True)\nimport time\ntime.sleep(60)", 60)
    assert next(stream) == Stream("stdout", "on\n")
    started = time.monotonic()
    stream.close()
    assert sandbox.run_code("x").value == 5
    assert time.monotonic() - started < 30


def test_a_run_can_be_cancelled_waited_for_and_interrupted(rig: Rig) -> None:
    sandbox = rig.sandbox()
    cancelled, outputs = threading.Event(), []
    for output in sandbox.stream("y = 1\nprint('on', flush=True)\nwhile True: pass", 60, cancelled):
        outputs.append(output)
        sandbox.cancel(cancelled)
    assert outputs[0] == Stream("stdout", "on\n")
    assert outputs[-1].name == "KeyboardInterrupt"  # type: ignore[union-attr]
    timer = threading.Timer(0.5, sandbox.interrupt)
    timer.start()
    assert sandbox.run_code("import time\ntime.sleep(60)").error.name == "KeyboardInterrupt"  # type: ignore[union-attr]
    timer.join()
    assert sandbox.run_code("y").value == 1
    stream = sandbox.stream("print(1, flush=True)\nimport time; time.sleep(30)", 60)
    next(stream)
    with pytest.raises(SessionBusy):
        sandbox.run_code("1")
    stream.close()


def test_files_go_before_a_run_and_come_after_it(rig: Rig) -> None:
    sandbox = rig.sandbox()
    folder = sandbox.workspace.path
    (folder / "in").mkdir()
    (folder / "in" / "a.txt").write_text("small")
    (folder / "large.bin").write_bytes(b"l" * 9_000_000)
    code = "import os, pathlib\nprint(open('in/a.txt').read(), os.path.getsize('large.bin'))\n"
    code += (
        "os.remove('large.bin')\npathlib.Path('out.bin').write_bytes(b'o' * 9_000_000)\nopen('b.txt', 'w').write('b')"
    )
    execution = sandbox.run_code(code)
    assert execution.stdout == "small 9000000\n"
    assert [(change.name, change.size) for change in execution.changes] == [("b.txt", 1), ("out.bin", 9_000_000)]
    assert not (folder / "large.bin").exists()
    assert (folder / "out.bin").read_bytes() == b"o" * 9_000_000
    (folder / "b.txt").unlink()
    assert sandbox.run_code("os.path.exists('b.txt')").value is False


def test_what_is_too_large_to_come_back_is_told(rig: Rig) -> None:
    sandbox = rig.sandbox({"limits": {"max_file_bytes": 1000, "min_disk_free": 1}})
    execution = sandbox.run_code("_ = open('big', 'w').write('x' * 2_000_000)\n_ = open('small', 'w').write('y')")
    assert [type(each) for each in execution.outputs] == [Omitted]
    assert "big (larger than 1,000 bytes, max_file_bytes)" in execution.outputs[0].text  # type: ignore[union-attr]
    assert sorted(path.name for path in sandbox.workspace.path.iterdir()) == ["small"]
    assert sandbox.run_code("1").outputs[0].text == "1"  # type: ignore[union-attr]


def test_too_many_files_are_refused_before_code_is_run(rig: Rig) -> None:
    sandbox = rig.sandbox({"limits": {"max_work_dir_entries": 3, "min_disk_free": 1}})
    for number in range(5):
        (sandbox.workspace.path / str(number)).touch()
    with pytest.raises(FileRejected, match="max_work_dir_entries"):
        sandbox.run_code("ran = True")


def test_without_copies_files_come_and_go_by_name(new_rig: Callable[..., Rig]) -> None:
    sandbox = new_rig(copies_files=False).sandbox()
    (sandbox.workspace.path / "here.txt").write_text("stays")
    sandbox.write_file("there.txt", "text")
    assert (
        sandbox.run_code("import os; print(sorted(os.listdir()))\nopen('made', 'w').close()").stdout
        == "['there.txt']\n"
    )
    assert sandbox.read_file("made") == b""
    assert [path.name for path in sandbox.workspace.path.iterdir()] == ["here.txt"]


def test_files_by_name_with_the_errors_of_the_file_service(rig: Rig) -> None:
    sandbox = rig.sandbox({"limits": {"max_transfer_bytes": 20_000_000}})
    sandbox.write_file("folder/data.bin", io.BytesIO(b"d" * 18_000_000))
    assert sandbox.read_file("folder/data.bin") == b"d" * 18_000_000
    assert sandbox.read_file("folder/data.bin", offset=17_999_999) == b"d"
    assert sandbox.read_file("folder/data.bin", max_bytes=9_000_000) == b"d" * 9_000_000
    sandbox.write_file("folder/data.bin", b"end", append=True)
    assert sandbox.stat("folder/data.bin").size == 18_000_003
    sandbox.move("folder/data.bin", "moved.bin")
    sandbox.make_dir("other")
    assert [entry.name for entry in sandbox.list_files()] == ["folder", "moved.bin", "other"]
    sandbox.remove("folder", recursive=True)
    assert not sandbox.exists("folder")
    with pytest.raises(FileNotFoundError):
        sandbox.read_file("nothing")
    with pytest.raises(OSError, match="max_transfer_bytes") as told:
        sandbox.write_file("large", b"x" * 20_000_001)
    assert told.value.errno == errno.EFBIG


def test_commands_run_to_their_end_and_can_be_cancelled(rig: Rig) -> None:
    sandbox = rig.sandbox()
    pieces: list[tuple[str, bytes]] = []
    result = sandbox.run_command("echo out; echo no >&2; exit 3", on_output=lambda *piece: pieces.append(piece))
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"no\n")
    assert sorted(pieces) == [("stderr", b"no\n"), ("stdout", b"out\n")]
    cancelled = threading.Event()
    timer = threading.Timer(0.5, sandbox.cancel, [cancelled])
    timer.start()
    assert sandbox.run_command("sleep 60", cancelled=cancelled).reason == "it was cancelled"
    timer.join()
    with pytest.raises(InvalidParams, match="needs a sandbox of this machine"):
        sandbox.start_command("sleep 1")
    with pytest.raises(InvalidParams, match="NUL"):
        sandbox.run_command("a\0b")


def test_host_functions_run_in_the_callers_process(rig: Rig) -> None:
    seen: list[str] = []

    def note(text: str) -> int:
        seen.append(text)
        return len(seen)

    sandbox = rig.sandbox(hostcalls=[note])
    execution = sandbox.run_code("print([await note(str(n)) for n in range(5)])")
    assert execution.stdout == "[1, 2, 3, 4, 5]\n"
    assert seen == ["0", "1", "2", "3", "4"]
    assert [call.status for call in execution.outputs if isinstance(call, HostCall)] == ["ok"] * 5
    code = "import asyncio\nprint(sum(await asyncio.gather(*(note('x' * 50_000) for _ in range(20)))))"
    assert sandbox.run_code(code).stdout == f"{sum(range(6, 26))}\n"


def test_more_answers_than_may_wait_unread_reach_the_code(rig: Rig) -> None:
    def large(megabytes: int) -> bytes:
        return bytes(megabytes * 2**20)

    sandbox = rig.sandbox(hostcalls=[large])
    code = (
        "import asyncio, time\n"
        "calls = [asyncio.create_task(large(5)) for _ in range(24)]\n"
        "await asyncio.sleep(0)\ntime.sleep(0.5)\n"
        "print(sum([len(each) for each in await asyncio.gather(*calls)]) // 2**20)"
    )
    assert sandbox.run_code(code).stdout == "120\n"


def test_functions_can_be_added_and_are_there_after_a_restart(rig: Rig) -> None:
    def double(n: int) -> int:
        return 2 * n

    sandbox = rig.sandbox()
    sandbox.run_code("x = 1")
    sandbox.add_functions([double])
    assert sandbox.run_code("await double(x)").value == 2
    sandbox.restart()
    assert sandbox.run_code("print('x' in globals(), await double(4))").stdout == "False 8\n"


def test_functions_can_take_the_place_of_all_others(rig: Rig) -> None:
    def double(n: int) -> int:
        return 2 * n

    def triple(n: int) -> int:
        return 3 * n

    sandbox = rig.sandbox(hostcalls=[double])
    assert sandbox.run_code("before = double\nawait double(2)").value == 4
    sandbox.put_functions([triple])
    assert sandbox.run_code("await triple(2)").value == 6
    refused = sandbox.run_code("await before(2)").error
    assert refused
    assert "double" in refused.value
    sandbox.restart()
    assert sandbox.run_code("print('double' in globals(), await triple(3))").stdout == "False 9\n"


def test_an_approval_lets_the_runs_clock_stand_still(rig: Rig) -> None:

    async def approve(_: object) -> bool:
        await asyncio.sleep(1.5)
        return True

    def buy(item: str) -> str:
        return f"bought {item}"

    toolset = Toolset()
    toolset.add(buy, policy=Policy(approve=approve))
    sandbox = rig.sandbox(hostcalls=toolset)
    sandbox.start()
    execution = sandbox.run_code("print(await buy('it'))", timeout=1.0)
    assert execution.stdout == "bought it\n"


def test_variables_go_back_and_are_saved_and_loaded(rig: Rig) -> None:
    sandbox, other = rig.sandbox(), rig.sandbox()
    sandbox.run_code("x = 1\n_ = open('kept.txt', 'w').write('k')")
    mark = sandbox.checkpoint()
    sandbox.run_code("x = 2")
    sandbox.undo()
    assert sandbox.run_code("x").value == 1
    sandbox.run_code("x = 3")
    sandbox.rollback(mark)
    state = sandbox.save(variables=True)
    assert "x" in state.variables.kept
    assert other.load(state).kept == state.variables.kept
    assert other.run_code("print(x, open('kept.txt').read())").stdout == "1 k\n"
    assert other.load(sandbox.save()).kept == ()
    with pytest.raises(CheckpointMissing):
        other.rollback(mark)


def test_variables_can_be_given_and_a_prelude_that_fails_is_told(rig: Rig) -> None:
    sandbox = rig.sandbox()
    assert sandbox.run_code("a + b", variables={"a": 1, "b": 2}).value == 3
    with pytest.raises(PreludeError):
        rig.fleet.find(sandbox.id).variables.define("1/0")  # type: ignore[union-attr]


def test_reset_begins_anew(rig: Rig) -> None:
    sandbox = rig.sandbox()
    sandbox.run_code("x = 1\nopen('f', 'w').close()")
    sandbox.reset()
    assert sandbox.run_code("import os; print('x' in globals(), os.listdir())").outputs == (
        Stream("stdout", "False []\n"),
    )


def test_a_fork_is_refused_with_what_to_do(rig: Rig) -> None:
    sandbox = rig.sandbox()
    with pytest.raises(InvalidParams, match=r"A fork needs a sandbox of this machine.*engine='docker'"):
        sandbox.fork()


def test_a_closed_session_says_so(rig: Rig) -> None:
    sandbox = rig.sandbox()
    sandbox.start()
    session = rig.fleet.find(sandbox.id)
    assert session
    timer = threading.Timer(0.5, session.close)
    timer.start()
    with pytest.raises(SessionClosed):
        session.run("import time; time.sleep(60)", 60)
    timer.join()
    session.close()
    with pytest.raises(SessionClosed):
        session.run("1", 5)


def test_a_host_that_vanishes_is_told_once_and_another_takes_over(rig: Rig) -> None:
    sandbox = rig.sandbox()
    folder = sandbox.workspace.path
    (folder / "mine.txt").write_text("mine")
    sandbox.run_code("x = 1")
    first = rig.link_of(sandbox)
    stream = sandbox.stream("print('on', flush=True)\nimport time; time.sleep(60)", 60)
    next(stream)
    first.vanish()
    with pytest.raises(SessionLost, match="Variables are lost"):
        next(stream)
    execution = sandbox.run_code("print('x' in globals(), open('mine.txt').read())")
    assert isinstance(execution.outputs[0], Restarted)
    assert execution.stdout == "False mine\n"
    assert rig.link_of(sandbox) is not first
    assert sandbox.run_code("1").outputs[0].text == "1"  # type: ignore[union-attr]


def test_a_session_whose_host_has_closed_it_runs_nothing_and_says_so(rig: Rig) -> None:
    sandbox = rig.sandbox()
    sandbox.start()
    assert sandbox.container
    rig.link_of(sandbox).host.close(sandbox.container.id.split("/")[1])
    with pytest.raises(SessionLost, match="nothing was run"):
        sandbox.run_code("open('ran', 'w').close()")
    assert isinstance(sandbox.run_code("1").outputs[0], Restarted)
    assert not (sandbox.workspace.path / "ran").exists()


def test_a_kernel_that_dies_is_told_as_ever(rig: Rig) -> None:
    sandbox = rig.sandbox()
    ending = sandbox.run_code("import os\nos._exit(3)").outputs[-1]
    assert isinstance(ending, Died)
    assert "exited with code 3" in ending.reason


def test_a_host_function_cannot_run_code_in_its_own_sandbox(rig: Rig) -> None:
    def again() -> str:
        try:
            sandbox.run_code("1")
        except SessionBusy as exc:
            return str(exc)
        return "ran"

    sandbox = rig.sandbox(hostcalls=[again])
    assert "cannot run code in the sandbox that called it" in sandbox.run_code("print(await again())").stdout


def test_all_full_is_told_after_the_patience(new_rig: Callable[..., Rig], tmp_path: Path) -> None:
    rig = new_rig(1, patience=0.3)
    rig.sandbox().start()
    with pytest.raises(HostFull, match=r"1 of 1 slots are taken.*patience"):
        rig.sandbox().start()
