"""The audit log: two lines a run, whole under threads, processes and rotation, and nothing runs without it."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from agent_tools import Sandbox
from agent_tools.errors import EngineError, InvalidParams, SessionClosed
from agent_tools.results.commands import CommandResult
from agent_tools.results.connections import NetworkConnection
from agent_tools.results.execution import Execution
from agent_tools.results.outputs import Changes, Died, Error, FileChange, HostCall, TimedOut
from agent_tools.runtime.runtime import Runtime
from agent_tools.sandbox.audit import MAX_ITEMS, MAX_LINE, AuditLog, AuditUnavailable, RunEnd
from tests.waiting import until


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


def test_a_run_is_two_lines_and_its_code_is_a_digest(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit")
    with log.of(owner="o", container="c", key="").run("print('ä')") as run:
        assert [line["event"] for line in lines_of(tmp_path / "audit")] == ["begun"]
        run.executed(Execution(duration=1.25))
    begun, ended = lines_of(tmp_path / "audit")
    assert begun["run"] == ended["run"]
    assert (begun["owner"], begun["container"], begun["code_bytes"]) == ("o", "c", 11)
    assert len(begun["code_sha256"]) == 64
    assert "code" not in begun
    assert "key" not in begun
    assert (ended["event"], ended["outcome"], ended["duration"]) == ("ended", "ok", 1.25)
    assert (tmp_path / "audit").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("path", ["audit", ""], ids=["logged", "not logged"])
def test_the_end_of_a_run_is_reported_as_it_is_logged(tmp_path: Path, path: str) -> None:
    used: list[RunEnd] = []
    log = AuditLog(tmp_path / path if path else "", ended=used.append).of(owner="o")
    made = tuple(NetworkConnection("h", 443, "closed", bytes_in=2, bytes_out=3) for _ in range(MAX_ITEMS + 1))
    with log.run("x") as run:
        run.executed(Execution(duration=1.2346, connections=made))
    with log.command("x") as run:
        run.commanded(CommandResult(1, duration=0.5))
    background = log.command("x")
    background.end_command(lambda: CommandResult(0, duration=2.0))
    background.end("cancelled")
    for failure in (RuntimeError("their words"), EngineError("The engine is away.")):
        with pytest.raises(type(failure)), log.run("x"):
            raise failure
    closed = SessionClosed("closed")
    closed.has_begun = True
    with pytest.raises(SessionClosed), log.run("x"):
        raise closed
    assert used.pop().outcome == "cancelled"
    with log.run("x") as run:
        run.failed(Died("x", "memory"))
    refused, died = used[3:5], used.pop()
    del used[3:]
    assert [(each.outcome, each.reason) for each in refused] == [
        ("refused", "RuntimeError"),
        ("refused", "The engine is away."),
    ]
    assert (died.outcome, died.reason) == ("died", "memory")
    assert used == [
        RunEnd(1_235, 2 * len(made), 3 * len(made)),
        RunEnd(500, outcome="error"),
        RunEnd(2_000),
    ]
    if path:
        ended = [each for each in lines_of(tmp_path / path) if each["event"].endswith("ended")]
        kept = [each for each in ended if each["outcome"] in ("ok", "error")]
        assert [round(each["duration"] * 1_000) for each in kept] == [each.milliseconds for each in used]
        assert (kept[0]["bytes_in"], kept[0]["bytes_out"]) == (2 * len(made), 3 * len(made))


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (Error("ZeroDivisionError", "x", ""), {"outcome": "error", "error": "ZeroDivisionError"}),
        (Error('X"\n{"evil": 1}', "x", ""), {"outcome": "error", "error": "_OTHER"}),
        (TimedOut(3.0, state_kept=True), {"outcome": "timed_out"}),
        (Died("x", "work_dir_quota"), {"outcome": "died", "cause": "work_dir_quota"}),
    ],
)
def test_an_ending_is_written_without_words_of_the_code(tmp_path: Path, output: Any, expected: dict[str, str]) -> None:
    log = AuditLog(tmp_path / "audit")
    with log.run("x") as run:
        run.executed(Execution((output,)))
    ended = lines_of(tmp_path / "audit")[1]
    assert {name: ended[name] for name in expected} == expected


def test_lists_are_bounded_and_hostile_names_stay_within_their_line(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit")
    changed = Changes([FileChange(f"{number}\n\u202e" + "ä" * 4_000, 1, True) for number in range(MAX_ITEMS + 3)])
    connection = NetworkConnection("evil\r\nhost", 443, "refused")
    call = HostCall(1, "f", "secret", 0.0, 0.1, "error")
    with log.run("x") as run:
        run.executed(Execution((call,), changed=changed, connections=(connection,)))
    assert max(map(len, (tmp_path / "audit").read_bytes().splitlines())) <= MAX_LINE
    ended = lines_of(tmp_path / "audit")[1]
    assert ended["files_left_out"] == 3
    assert ended["cut"]
    assert "secret" not in json.dumps(ended)


def test_code_and_commands_are_written_only_where_asked_for(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit", code=True)
    with log.run("print(1)"), log.command(["rm", "a"]) as command:
        command.commanded(CommandResult(2))
    with log.run("\U0001f600" * MAX_LINE):
        pass
    code, command_begun, command_ended, _, long = lines_of(tmp_path / "audit")[:5]
    assert code["code"] == "print(1)"
    assert (command_begun["code"], command_ended["outcome"], command_ended["exit_code"]) == ('["rm", "a"]', "error", 2)
    assert long["code_cut"]
    assert set(long["code"]) == {"\U0001f600"}


@pytest.mark.parametrize("command", [None, 7, b"ls", [1, None], [b"a"], [{(1,): 2}]])
def test_a_command_that_is_not_text_is_written_before_it_is_rejected(
    process_runtime: Runtime, tmp_path: Path, command: Any
) -> None:
    with Sandbox(runtime=process_runtime, audit=tmp_path / "audit") as sandbox:
        with pytest.raises(InvalidParams):
            sandbox.run_command(command)
        with pytest.raises(InvalidParams):
            sandbox.start_command(command)
    assert [line.get("outcome") for line in lines_of(tmp_path / "audit")] == [None, "refused"] * 2


def test_a_run_that_was_refused_or_left_early_says_so(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit")
    with pytest.raises(ValueError, match="x"), log.run("x"):
        raise ValueError("x")
    with pytest.raises(KeyboardInterrupt), log.run("x"):
        raise KeyboardInterrupt
    assert [line.get("outcome") for line in lines_of(tmp_path / "audit")] == [None, "refused", None, "cancelled"]


def test_nothing_runs_where_the_log_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "absent/log"):
        with pytest.raises(AuditUnavailable, match="nothing runs"), AuditLog(tmp_path / name).run("x"):
            pytest.fail("it ran")
        with AuditLog(tmp_path / name, required=False).run("x"):
            pass


FULL = """
import resource, signal, sys
from agent_tools.runtime.runtime import Runtime
from agent_tools.sandbox.audit import AuditLog, AuditUnavailable
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
log = AuditLog(sys.argv[1])
try:
    for number in range(100):
        log.write("begun", run=str(number))
except AuditUnavailable as exc:
    print(number > 1, "File too large" in str(exc) or "full" in str(exc))
"""


def test_a_full_disk_stops_runs_and_spoils_no_line_that_was_written(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", FULL, tmp_path / "audit"], capture_output=True, text=True, check=True)
    assert ended.stdout == "True True\n"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    whole = (tmp_path / "audit").read_bytes().rpartition(b"\n")[0].splitlines()
    assert all(json.loads(line)["event"] == "begun" for line in whole)


WRITER = """
import sys, threading
from agent_tools.runtime.runtime import Runtime
from agent_tools.sandbox.audit import AuditLog
log = AuditLog(sys.argv[1])
def write(thread):
    for number in range(300):
        log.write("begun", process=sys.argv[2], thread=thread, number=number, x="\\u202e" * (number % 90))
threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_no_line_of_several_processes_is_lost_or_torn_by_a_rotation(tmp_path: Path) -> None:
    path, rotated = tmp_path / "audit", tmp_path / "audit.1"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, path, str(number)]) for number in range(2)]
    while not path.exists() or path.stat().st_size < 20_000:
        assert any(writer.poll() is None for writer in writers)
    path.rename(rotated)
    assert [writer.wait(60) for writer in writers] == [0, 0]
    lines = lines_of(rotated) + lines_of(path)
    assert len({(line["process"], line["thread"], line["number"]) for line in lines}) == len(lines) == 2 * 4 * 300


def test_each_run_and_command_of_a_sandbox_is_audited(process_runtime: Runtime, tmp_path: Path) -> None:
    path = tmp_path / "audit"
    with Sandbox(runtime=process_runtime, audit=path) as sandbox:
        sandbox.run_code("open('made', 'w').write('1')")
        sandbox.run_code("1/0")
        sandbox.run_command(["false"])
        with sandbox.fork() as fork:
            fork.run_code("2")
        background = sandbox.start_command("true")
        background.wait()
        until(lambda: len(lines_of(path)) == 10)  # it is written in the thread that waits for the command
    lines = lines_of(path)
    runs, commands = ["begun", "ended"], ["command_begun", "command_ended"]
    assert [line["event"] for line in lines] == [*runs, *runs, *commands, *runs, *commands]
    assert [line["outcome"] for line in lines if "outcome" in line] == ["ok", "error", "error", "ok", "ok"]
    assert lines[1]["files"] == [{"path": "made", "size": 1}]
    assert lines[3]["error"] == "ZeroDivisionError"
    assert len({line["run"] for line in lines}) == 5


def test_a_run_that_its_caller_cancels_is_audited_as_cancelled(process_runtime: Runtime, tmp_path: Path) -> None:
    path = tmp_path / "audit"
    cancelled = [threading.Event(), threading.Event()]
    with Sandbox(runtime=process_runtime, audit=path) as sandbox:
        code = "print(1, flush=True)\nimport time; time.sleep(60)"
        sandbox.run_code(code, on_output=lambda _: sandbox.cancel(cancelled[0]), cancelled=cancelled[0])
        cancelled[1].set()
        waiting = sandbox.run_code("1", cancelled=cancelled[1])
        sandbox.run_code("raise KeyboardInterrupt")
        sandbox.run_command("sleep 60", cancelled=cancelled[1])
    assert not waiting.ok
    assert lines_of(path)[-1]["outcome"] == "cancelled"
    ends = [line for line in lines_of(path) if line["event"] == "ended"]
    assert [line["outcome"] for line in ends] == ["cancelled", "cancelled", "error"]
    assert {line["error"] for line in ends} == {"KeyboardInterrupt"}


def test_a_log_that_keeps_its_writer_waiting_delays_no_other_command(process_runtime: Runtime) -> None:
    waits, goes_on = threading.Event(), threading.Event()

    def ended(_: RunEnd) -> None:
        waits.set()
        goes_on.wait()

    with Sandbox(runtime=process_runtime, audit=AuditLog(ended=ended)) as sandbox:
        try:
            sandbox.start_command("true")
            assert waits.wait(20)
            assert sandbox.start_command("echo 1").wait(20).stdout == b"1\n"
        finally:
            goes_on.set()


def test_a_script_is_audited_instead_of_the_command_that_starts_it(process_runtime: Runtime, tmp_path: Path) -> None:
    path = tmp_path / "audit"
    with Sandbox(runtime=process_runtime, audit=path) as sandbox:
        sandbox.run_command("true", script="print(1)")
        sandbox.start_command("true", script="print(2)").wait()
        until(lambda: len(lines_of(path)) == 4)
    found = [line["code_sha256"] for line in lines_of(path) if line["event"] == "command_begun"]
    assert found == [hashlib.sha256(code).hexdigest() for code in (b"print(1)", b"print(2)")]


def test_no_code_runs_in_a_sandbox_whose_log_cannot_be_written(process_runtime: Runtime, tmp_path: Path) -> None:
    with Sandbox(runtime=process_runtime, audit=tmp_path / "absent" / "audit") as sandbox:
        for run in (sandbox.run_code, sandbox.run_command, sandbox.start_command):
            with pytest.raises(AuditUnavailable, match="nothing runs"):
                run("open('made', 'w')")
        assert sandbox.list_files() == []
    with Sandbox(runtime=process_runtime, audit=tmp_path / "absent", audit_required=False) as sandbox:
        assert sandbox.run_code("6 * 7").value == 42
