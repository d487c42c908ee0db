"""E2B's own SDKs for Python: the life of a sandbox, code, files, commands, terminals."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

os.environ["E2B_API_URL"] = os.environ["E2B_SANDBOX_URL"] = f"{os.environ['GATEWAY']}/e2b"
os.environ["E2B_API_KEY"] = os.environ["GATEWAY_KEY"]

from e2b import (
    CommandExitException,
    FileNotFoundException,
    FileType,
    NotFoundException,
    PtySize,
    SandboxException,
    TimeoutException,
)
from e2b_code_interpreter import AsyncSandbox, Sandbox


def main() -> None:
    sandbox = Sandbox.create(timeout=300, metadata={"a": "b"}, envs={"FOO": "bar"})
    try:
        life(sandbox)
        code(sandbox)
        metrics(sandbox)
        contexts(sandbox)
        files(sandbox)
        commands(sandbox)
        terminal(sandbox)
        what_is_not_there(sandbox)
        pausing(sandbox)
    finally:
        assert sandbox.kill()
    assert not sandbox.is_running()
    assert not Sandbox.kill(sandbox.sandbox_id)
    asyncio.run(awaited())
    short = Sandbox.create(timeout=1)
    time.sleep(3)
    assert not short.is_running()
    print(f"e2b {version('e2b')}, e2b-code-interpreter {version('e2b-code-interpreter')}: work, awaited or not")


def failure(use: Callable[[], object], kind: type[Exception]) -> Any:
    """Return the exception that a call ends with."""
    try:
        use()
    except kind as exc:
        return exc
    raise AssertionError(f"there was no {kind.__name__}")


def life(sandbox: Sandbox) -> None:
    assert sandbox.is_running()
    info = sandbox.get_info()
    assert (info.metadata, info.sandbox_id) == ({"a": "b"}, sandbox.sandbox_id), info
    listed = Sandbox.list().next_items()
    assert [each.sandbox_id for each in listed] == [sandbox.sandbox_id], listed
    sandbox.set_timeout(600)
    assert (sandbox.get_info().end_at - info.end_at).total_seconds() > 200
    assert Sandbox.connect(sandbox.sandbox_id).run_code("2 + 3").text == "5"


def code(sandbox: Sandbox) -> None:
    seen: list[str] = []
    ran = sandbox.run_code(
        "import sys\nfor i in range(3): print(i, flush=True)\nprint('e', file=sys.stderr)\n1 + 1",
        on_stdout=lambda message: seen.append(message.line),
    )
    assert ("".join(ran.logs.stdout), "".join(ran.logs.stderr), ran.text) == ("0\n1\n2\n", "e\n", "2"), ran
    assert "".join(seen) == "0\n1\n2\n", seen
    assert ran.execution_count == 2, ran
    figure = sandbox.run_code("import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()")
    assert any(result.png for result in figure.results), figure
    table = sandbox.run_code("import pandas; pandas.DataFrame({'a': [1]})")
    assert table.results[0].html, table
    assert table.results[0].is_main_result, table
    assert table.results[0].data == {"a": [1]}, table.results[0].data
    failed = sandbox.run_code("1 / 0")
    assert failed.error, failed
    assert failed.error.name == "ZeroDivisionError", failed
    look = "import os; os.environ['FOO'], os.environ.get('X')"
    assert sandbox.run_code(look, envs={"X": "1"}).text == "('bar', '1')"
    assert sandbox.run_code(look).text == "('bar', None)"
    failure(lambda: sandbox.run_code("import time\nkept = 1\ntime.sleep(60)", timeout=2), TimeoutException)
    assert sandbox.run_code("kept").text == "1"
    chart = {"application/vnd.e2b.chart+json": {"type": "unknown", "title": "t", "elements": []}}
    ran = sandbox.run_code(f"display({chart!r}, raw=True)")
    assert ran.results, ran
    shown = ran.results[0].chart
    assert shown, ran.results[0].__dict__
    assert shown.title == "t", shown


def metrics(sandbox: Sandbox) -> None:
    used = sandbox.get_metrics()[0]
    assert 0 < used.mem_used < used.mem_total, used
    assert used.disk_used < used.disk_total, used


def contexts(sandbox: Sandbox) -> None:
    context = sandbox.create_code_context(cwd="/tmp")
    sandbox.run_code("z = 1", context=context)
    assert sandbox.run_code("z", context=context).text == "1"
    assert sandbox.run_code("import os; os.getcwd()", context=context).text == "/tmp"
    assert sandbox.run_code("z").error, "contexts share variables"
    assert len(sandbox.list_code_contexts()) == 2
    sandbox.restart_code_context(context)
    assert sandbox.run_code("z", context=context).error, "a restart has kept variables"
    sandbox.remove_code_context(context)
    assert len(sandbox.list_code_contexts()) == 1


def files(sandbox: Sandbox) -> None:
    written = sandbox.files.write("a/hello.txt", "hi")
    assert written.path == "/home/user/a/hello.txt", written
    assert sandbox.files.read("/home/user/a/hello.txt") == "hi"
    assert sandbox.run_code("open('a/hello.txt').read()").text == "hi"
    sandbox.files.write_files([{"path": "b/1", "data": b"\0\xff"}, {"path": "b/2", "data": "2"}])
    assert bytes(sandbox.files.read("b/1", format="bytes")) == b"\0\xff"
    large = os.urandom(3_000_000)
    sandbox.files.write("large", large, use_octet_stream=True)
    assert b"".join(sandbox.files.read("large", format="stream")) == large
    sandbox.files.write("packed", "p" * 100_000, gzip=True)
    assert sandbox.files.read("packed") == "p" * 100_000
    names = {(each.name, each.type) for each in sandbox.files.list("b")}
    assert names == {("1", FileType.FILE), ("2", FileType.FILE)}, names
    assert sandbox.files.exists("b/1")
    assert not sandbox.files.exists("none")
    assert sandbox.files.rename("b/1", "c/1").path == "/home/user/c/1"
    info = sandbox.files.get_info("c/1")
    assert (info.size, info.type, info.permissions) == (2, FileType.FILE, "-rw-r--r--"), info
    assert sandbox.files.make_dir("d/e")
    assert not sandbox.files.make_dir("d/e")
    assert len(sandbox.files.list("d/..", depth=2)) > 5
    sandbox.files.remove("c")
    assert not sandbox.files.exists("c")
    failure(lambda: sandbox.files.read("none"), FileNotFoundException)
    watched = sandbox.files.watch_dir("d", recursive=True)
    sandbox.files.write("d/e/f", "f")
    assert {each.name for each in watched.get_new_events()} == {"e/f"}
    watched.stop()


def commands(sandbox: Sandbox) -> None:
    out: list[str] = []
    ran = sandbox.commands.run("echo $FOO $BAR; pwd; echo err >&2", envs={"BAR": "x"}, on_stdout=out.append)
    assert (ran.exit_code, ran.stdout, ran.stderr) == (0, "bar x\n/home/user\n", "err\n"), ran
    assert "".join(out) == ran.stdout, out
    assert sandbox.commands.run("pwd", cwd="/tmp", user="root").stdout == "/tmp\n"
    failed = failure(lambda: sandbox.commands.run("echo before; exit 3"), CommandExitException)
    assert (failed.exit_code, failed.stdout) == (3, "before\n"), failed
    flood = sandbox.commands.run("head -c 5000000 /dev/zero | tr '\\0' x")
    assert len(flood.stdout) == 5_000_000, len(flood.stdout)
    failure(lambda: sandbox.commands.run("sleep 60", timeout=1), TimeoutException)
    handle = sandbox.commands.run("cat", background=True, stdin=True, timeout=0)
    while [each.pid for each in sandbox.commands.list()] != [handle.pid]:  # until the others have ended
        time.sleep(0.1)
    sandbox.commands.send_stdin(handle.pid, "typed\n")
    other = sandbox.commands.connect(handle.pid)
    sandbox.commands.send_stdin(handle.pid, "more\n")
    sandbox.commands.close_stdin(handle.pid)
    assert "more\n" in other.wait().stdout
    assert handle.wait().stdout == "typed\nmore\n"
    sleeper = sandbox.commands.run("sleep 600", background=True, timeout=0)
    assert sleeper.kill()
    assert not sandbox.commands.kill(sleeper.pid)
    assert sandbox.commands.list() == []


def terminal(sandbox: Sandbox) -> None:
    pty = sandbox.pty.create(PtySize(rows=30, cols=100), timeout=60)
    sandbox.pty.resize(pty.pid, PtySize(rows=40, cols=120))
    sandbox.pty.send_stdin(pty.pid, b"stty size; exit\n")
    seen: list[bytes] = []
    pty.wait(on_pty=seen.append)
    assert b"40 120" in b"".join(seen), seen


def what_is_not_there(sandbox: Sandbox) -> None:
    for use in (
        lambda: sandbox.run_code("1", language="javascript"),
        lambda: Sandbox.create("my-template"),
        sandbox.create_snapshot,
    ):
        why = str(failure(use, SandboxException))
        assert " here" in why, why
    failure(lambda: Sandbox.connect("i" + "0" * 24), NotFoundException)


def pausing(sandbox: Sandbox) -> None:
    sandbox.run_code("stays = [1, 2]")
    sandbox.pause()
    assert not sandbox.is_running()
    again = Sandbox.connect(sandbox.sandbox_id, timeout=120)
    assert again.run_code("stays").text == "[1, 2]"
    assert again.files.read("a/hello.txt") == "hi"


async def awaited() -> None:
    sandbox = await AsyncSandbox.create(timeout=60)
    try:
        ran = await sandbox.run_code("print(1); 2")
        assert (ran.logs.stdout, ran.text) == (["1\n"], "2"), ran
        assert (await sandbox.commands.run("echo hi")).stdout == "hi\n"
        await sandbox.files.write("f", "x")
        assert await sandbox.files.read("f") == "x"
    finally:
        await sandbox.kill()


if __name__ == "__main__":
    main()
