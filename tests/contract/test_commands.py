"""Commands and files of a sandbox, on every engine we have and both transports."""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import tarfile
import threading
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from agent_tools.engines.docker.engine import DockerEngine
from agent_tools.engines.engine import Engine
from agent_tools.engines.ray.engine import NodesEngine
from agent_tools.errors import InvalidParams, SandboxGone, SessionBusy
from agent_tools.limits import MIB
from agent_tools.runtime.runtime import Runtime
from agent_tools.sandbox import Sandbox
from tests.doubles import ProcessEngine
from tests.waiting import until

pytestmark = pytest.mark.docker

OF_PROCESSES = (ProcessEngine, NodesEngine)
"""Engines whose sandboxes are processes of the host; the nodes of tests have such ones."""


@pytest.fixture
def new_sandbox(runtime: Runtime, transport: str) -> Iterator[Callable[..., Sandbox]]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Sandbox({"transport": transport, **options}, runtime=runtime))


@pytest.fixture(scope="module")
def sandbox(runtime: Runtime, transport: str) -> Iterator[Sandbox]:
    """A sandbox for all tests that leave it as it was."""
    with Sandbox({"transport": transport}, runtime=runtime) as sandbox:
        sandbox.run_code("0")
        yield sandbox


@pytest.fixture(scope="module")
def bounded(runtime: Runtime, transport: str) -> Iterator[Sandbox]:
    """A sandbox that takes few commands, with time to set a trap, and to spring it, on a busy machine."""
    with Sandbox(
        {"transport": transport, "limits": {"command_grace": 1.5, "max_commands": 2}}, runtime=runtime
    ) as made:
        made.run_code("0")
        yield made


# -- commands ---------------------------------------------------------------------------------------------------------


def test_a_text_is_the_shell_s_and_a_list_is_taken_as_it_is(sandbox: Sandbox) -> None:
    assert sandbox.run_command("echo $((1 + 1)); echo problem >&2; exit 3").output == "2\nproblem\n"
    assert sandbox.run_command(["echo", "$HOME", "a  b", ";", "é"]).stdout.decode() == "$HOME a  b ; é\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("true", 0),
        ("exit 7", 7),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
        (["no-such-program"], 127),
        (["/etc/passwd"], 126),
    ],
)
def test_its_end_is_an_exit_code(sandbox: Sandbox, command: str | list[str], code: int) -> None:
    assert sandbox.run_command(command).exit_code == code


def test_where_it_starts_and_with_what(sandbox: Sandbox) -> None:
    assert sandbox.run_command("pwd", cwd="/tmp").stdout == b"/tmp\n"
    assert sandbox.run_command("echo $GREETING", env={"GREETING": "hi there"}).stdout == b"hi there\n"
    assert sandbox.run_command("pwd", cwd="nowhere").exit_code == 127
    assert b"AGENT_TOOLS" not in sandbox.run_command("env").stdout


def test_its_environment_is_the_sandboxs_and_not_that_of_a_notebook(sandbox: Sandbox) -> None:
    kernels = sandbox.run_code("import os; list(os.environ)").value
    own = {line.partition("=")[0] for line in sandbox.run_command("env").stdout.decode().splitlines()}
    added = {"FORCE_COLOR", "CLICOLOR_FORCE", "MPLBACKEND"}
    assert added <= set(kernels)
    assert not added & own
    assert {"PATH", "HOME", "PWD"} <= own
    assert b"\x1b" not in sandbox.run_command(["python3", "-c", "1/0"]).stderr


def test_its_stdin_is_at_its_end_or_what_was_given(sandbox: Sandbox) -> None:
    assert sandbox.run_command("cat").stdout == b""
    assert sandbox.run_command("cat", stdin=bytes(range(256))).stdout == bytes(range(256))


def test_its_stdin_may_be_a_file_that_is_read_while_it_runs(sandbox: Sandbox) -> None:
    source, sink = os.pipe()
    with open(source, "rb", buffering=0) as file, open(sink, "wb", buffering=0) as typed:
        seen = bytearray()

        def answer(_stream: str, data: bytes) -> None:
            seen.extend(data)
            if seen == b"name?":
                typed.write(b"bob\n")

        code = "print(input('name?'), end='')"  # the file has no end meanwhile
        result = sandbox.run_command(["python3", "-c", code], stdin=file, on_output=answer, timeout=60)
    assert (result.exit_code, bytes(seen)) == (0, b"name?bob")
    data = os.urandom(MIB)
    assert sandbox.run_command("cat", stdin=io.BytesIO(data)).stdout == data


def test_ctrl_c_is_an_interrupt_of_the_command_that_lets_it_end(bounded: Sandbox) -> None:
    seen: list[bytes] = []

    def press(_stream: str, data: bytes) -> None:
        seen.append(data)
        if data == b"ready\n":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bounded.run_command("trap 'echo ended; exit 5' INT; echo ready; sleep 60 & wait", on_output=press, timeout=60)
    assert seen == [b"ready\n", b"ended\n"]


def test_what_on_output_raises_is_raised(sandbox: Sandbox) -> None:
    def fail(_stream: str, _data: bytes) -> None:
        raise BrokenPipeError("nobody reads")

    with pytest.raises(BrokenPipeError, match="nobody reads"):
        sandbox.run_command("echo text; sleep 60", on_output=fail, timeout=60)


def test_large_input_and_output_cross_whole(sandbox: Sandbox) -> None:
    data = os.urandom(MIB) * 8
    assert sandbox.run_command(["cat"], stdin=data).stdout == data
    assert sandbox.run_command("wc -c", stdin=data).stdout.split() == [str(len(data)).encode()]


def test_what_is_beyond_the_bound_is_left_out_and_counted(sandbox: Sandbox) -> None:
    result = sandbox.run_command("head -c 3000000 /dev/zero; echo end; head -c 10 /dev/zero >&2", max_output=1_000)
    assert result.stdout == bytes(996) + b"end\n"
    assert (result.omitted_stdout, result.omitted_stderr, len(result.stderr)) == (3_000_004 - 1_000, 0, 10)


def test_over_its_time_it_is_asked_and_then_ended_with_all_of_its_session(bounded: Sandbox) -> None:
    mine = os.getpid()  # other workers' commands are seen, too, where the engine is one of plain processes
    asked = bounded.run_command(f"trap 'echo asked; exit 5' TERM; sleep 611.{mine} & wait", timeout=1.5)
    assert (asked.exit_code, asked.timed_out, asked.stdout) == (124, True, b"asked\n")
    deaf = bounded.run_command(f"trap '' TERM; sleep 612.{mine} & echo here; sleep 613.{mine}", timeout=1.5)
    assert (deaf.exit_code, deaf.timed_out, deaf.stdout) == (124, True, b"here\n")
    left = bounded.run_command("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").output
    assert re.findall(rf"sleep 61\d\.{mine}\b", left) == []


def test_a_child_in_the_background_holds_nothing_up_and_lives_on(sandbox: Sandbox) -> None:
    result = sandbox.run_command("(while :; do echo noise; sleep 0.01; done) & echo $!", timeout=30)
    child = int(next(word for word in result.stdout.split() if word.isdigit()))
    assert result.ok
    assert sandbox.run_command(f"sleep 0.1; kill -0 {child} && kill -9 {child}").ok


def test_commands_run_beside_code_and_beside_each_other(sandbox: Sandbox) -> None:
    go = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('gone')"
    with ThreadPoolExecutor(101) as pool:
        code = pool.submit(sandbox.run_code, go, timeout=60)
        found = list(pool.map(lambda n: sandbox.run_command(f"echo {n}; exit {n}"), range(100)))
        assert [(each.exit_code, each.stdout) for each in found] == [(n, b"%d\n" % n) for n in range(100)]
        sandbox.write_file("go", b"")
        assert code.result().stdout == "gone\n"
    sandbox.remove("go")


def test_a_kernel_that_is_replaced_takes_no_command_with_it(bounded: Sandbox) -> None:
    bounded.run_code("import subprocess; s = subprocess.Popen(['sleep', '603'])")
    process = bounded.start_command("(setsid sleep 604 &); read line; echo got $line", stdin=b"")
    until(lambda: process.pid > 0)
    bounded.restart()
    bounded.run_code("import os; os.kill(os.getpid(), 9)")
    assert bounded.run_code("1 + 1").result is not None
    process.write_stdin(b"it\n")
    assert process.wait(30).stdout == b"got it\n"
    names = bounded.run_command("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").output
    if not isinstance(bounded._opening._open_runtime().engine, OF_PROCESSES):  # there all processes are the host's
        assert "sleep 604" in names
        assert "sleep 603" not in names


def test_one_in_the_background_is_polled_read_and_ended(sandbox: Sandbox) -> None:
    process = sandbox.start_command("for i in 1 2 3; do read x; echo $i $x; done; sleep 600", stdin=b"")
    assert process.poll() is None
    cursor = (0, 0)
    for number in (1, 2, 3):
        process.write_stdin(b"go\n")
        output = process.read(cursor, wait=30)
        assert output.stdout == b"%d go\n" % number
        cursor = output.cursor
    assert process.read().stdout == b"1 go\n2 go\n3 go\n"
    process.signal(signal.SIGTERM)
    assert process.wait(30).exit_code == 143


def test_a_terminal_is_one(sandbox: Sandbox) -> None:
    process = sandbox.start_command("tty; stty size; read x; stty size; echo got $x", terminal=(30, 100))
    until(lambda: b"30 100" in process.read().stdout)
    process.resize(40, 120)
    process.write_stdin(b"this\n")
    result = process.wait(30)
    assert result.exit_code == 0
    lines = result.stdout.decode().split("\r\n")
    assert lines[0].startswith("/dev/")
    assert lines[-3:] == ["40 120", "got this", ""]


SHORT_PROGRAMS: list[str | list[str]] = [
    *("true", "false || :", ":", "echo hello", "printf x", "cat a", "cp a $$", "cp a $$; mv $$ $$.c", "rm -f nothing"),
    *("touch z", "mkdir -p q", "ln -sf a $$.l", "ls", "wc a", "sort a", "head -n 1 a", "tail -n 1 a", "cut -c 1 a"),
    *("tr a b < a", "uniq a", "tee t < a", "chmod u+w a", "stat a", "dirname a/b", "seq 3", "date", "cp a b; true"),
    *(["cp", "a", "b"], "exec 0<&- 1>&- 2>&-; sleep 0.1", "exec 0<&- 1>&- 2>&-; exec sleep 0.1"),
]


@pytest.mark.timeout(300)  # 210 commands
def test_short_programs_on_a_terminal_end_with_their_own_exit_code(
    sandbox: Sandbox, engine: Engine, transport: str
) -> None:
    rounds = 7 if isinstance(engine, DockerEngine) and transport == "sockets" else 1  # the guest's part is the same
    sandbox.write_file("a", "some text\n")

    def exit_code(command: str | list[str]) -> int | None:
        return sandbox.start_command(command, stdin=b"", terminal=(24, 80)).wait(60).exit_code

    with ThreadPoolExecutor(3) as at_once:  # with more of them the guest is too busy to look before a process has ended
        codes = list(at_once.map(exit_code, SHORT_PROGRAMS * rounds))
    assert {(str(command), code) for command, code in zip(SHORT_PROGRAMS * rounds, codes) if code != 0} == set()


def test_a_process_that_closes_its_terminal_lives_on_and_is_heard_when_it_opens_it_again(sandbox: Sandbox) -> None:
    daemon = (
        "exec 0<&- 1>&- 2>&-; echo > daemon.closed; until [ -e daemon.go ]; do sleep 0.02; done; echo up > /dev/tty"
    )
    process = sandbox.start_command(f"{daemon}; until [ -e daemon.stop ]; do sleep 0.02; done", terminal=(24, 80))
    until(lambda: any(each.name == "daemon.closed" for each in sandbox.list_files()))
    sandbox.write_file("daemon.go", "")
    until(lambda: process.read().stdout == b"up\r\n")
    sandbox.write_file("daemon.stop", "")
    assert process.wait(30).exit_code == 0


def test_setting_its_event_ends_it(sandbox: Sandbox) -> None:
    cancelled = threading.Event()
    threading.Timer(0.2, sandbox.cancel, (cancelled,)).start()
    result = sandbox.run_command("sleep 600", cancelled=cancelled)
    assert (result.ok, result.reason) == (False, "it was cancelled")


def test_more_than_may_run_wait_for_their_turn(bounded: Sandbox) -> None:
    first, second = (bounded.start_command("read x", stdin=b"") for _ in range(2))
    with pytest.raises(SessionBusy, match="max_commands"):
        bounded.run_command("true", timeout=0.2)
    threading.Timer(0.2, first.kill).start()
    assert bounded.run_command("true").ok
    second.kill()


def test_a_sandbox_that_ends_is_told_and_the_next_command_gets_another(bounded: Sandbox) -> None:
    bounded.start()
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(bounded.run_command, "echo here; sleep 600")
        background = bounded.start_command("sleep 605")
        until(lambda: background.pid > 0)
        bounded.close()
        with pytest.raises(SandboxGone):
            told.result(30)
    assert background.wait(30).reason == "the sandbox was closed"
    assert bounded.run_command("echo again").stdout == b"again\n"


@pytest.mark.parametrize("command", ["", [], ["a\0b"], [1], b"ls", None])
def test_what_is_no_command_is_refused(sandbox: Sandbox, command: object) -> None:
    if command == "":
        assert sandbox.run_command("").ok
    else:
        with pytest.raises(InvalidParams):
            sandbox.run_command(command)  # type: ignore[arg-type]


UNUSABLE: dict[str, Callable[[Any], object]] = {
    "text for stdin": lambda sandbox: sandbox.run_command("cat", stdin="text"),
    "a file of text for stdin": lambda sandbox: sandbox.run_command("cat", stdin=io.StringIO("text")),
    "a file of text to write": lambda sandbox: sandbox.write_file("a", io.StringIO("text")),
    "a terminal of no size": lambda sandbox: sandbox.start_command("true", terminal=(70_000, 1)),
    "a list for env": lambda sandbox: sandbox.run_command("true", env=["A"]),
    "a number for cwd": lambda sandbox: sandbox.run_command("true", cwd=5),
    "no path to read": lambda sandbox: sandbox.read_file(None),
    "no path to write": lambda sandbox: sandbox.write_file(5, b""),
    "no path to remove": lambda sandbox: sandbox.remove(["a"]),
    "no path to make": lambda sandbox: sandbox.make_dir(None),
    "nowhere to move": lambda sandbox: sandbox.move("a", None),
    "half an offset": lambda sandbox: sandbox.read_file("a", offset=1.5),
    "fewer bytes than none": lambda sandbox: sandbox.read_file("a", max_bytes=-1),
    "a name to save to": lambda sandbox: sandbox.save_to("x.state"),
}


@pytest.mark.parametrize("use", UNUSABLE.values(), ids=UNUSABLE)
def test_an_argument_of_another_type_is_refused_by_name(sandbox: Sandbox, use: Callable[[Any], object]) -> None:
    with pytest.raises(InvalidParams, match="give"):
        use(sandbox)
    assert sandbox.run_command("echo lives").stdout == b"lives\n"


# -- files ------------------------------------------------------------------------------------------------------------


def test_paths_may_be_path_objects(sandbox: Sandbox) -> None:
    path = PurePosixPath("some") / "where"
    sandbox.write_file(path, "text")
    assert sandbox.read_file(path) == b"text"
    assert [each.name for each in sandbox.list_files(path.parent)] == ["where"]
    sandbox.move(path, path.with_name("else"))
    assert sandbox.run_command("ls", cwd=path.parent).stdout == b"else\n"
    assert not sandbox.exists(path)
    sandbox.remove(path.parent, recursive=True)


@pytest.mark.parametrize("path", [".", "./", "made/.."])
def test_work_dir_itself_is_not_removed_with_all_in_it(sandbox: Sandbox, path: str) -> None:
    sandbox.make_dir("made")
    with pytest.raises(OSError, match="busy"):
        sandbox.remove(path, recursive=True)
    assert sandbox.exists("made")


def test_files_are_written_read_listed_moved_and_removed(sandbox: Sandbox) -> None:
    sandbox.write_file("made/in/there.bin", bytes(range(256)) * 5_000)
    assert sandbox.read_file("made/in/there.bin") == bytes(range(256)) * 5_000
    assert sandbox.read_file("made/in/there.bin", offset=255, max_bytes=2) == b"\xff\0"
    assert [(each.name, each.path, each.is_dir) for each in sandbox.list_files("made")] == [("in", "made/in", True)]
    sandbox.run_command("ln -s in made/link")
    assert [(each.name, each.kind) for each in sandbox.list_files("made")] == [("in", "folder"), ("link", "link")]
    assert [each.kind for each in sandbox.list_files("made", follow=True)] == ["folder", "folder"]
    assert sandbox.stat("made/in/there.bin").size == 1_280_000
    sandbox.write_file("numbers", memoryview(array("I", [1, 2])))
    assert sandbox.read_file("numbers") == bytes([1, 0, 0, 0, 2, 0, 0, 0])
    sandbox.write_file("made/text", "grüß")
    sandbox.write_file("made/text", " dich", append=True)
    assert sandbox.read_file("made/text").decode() == "grüß dich"
    sandbox.move("made/text", "made/other/text")
    assert sandbox.exists("made/other/text")
    assert not sandbox.exists("made/text")
    sandbox.remove("made", recursive=True)
    assert not sandbox.exists("made")


def test_code_commands_and_files_see_the_same(sandbox: Sandbox) -> None:
    sandbox.write_file("shared.txt", "one\n")
    sandbox.run_command("echo two >> shared.txt")
    assert sandbox.run_code("print(open('shared.txt').read())").stdout == "one\ntwo\n\n"
    sandbox.remove("shared.txt")


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda sandbox: sandbox.read_file("nowhere"), FileNotFoundError),
        (lambda sandbox: sandbox.read_file("/tmp"), IsADirectoryError),
        (lambda sandbox: sandbox.read_file("/etc/passwd/x"), NotADirectoryError),
        (lambda sandbox: sandbox.list_files("nowhere"), FileNotFoundError),
        (lambda sandbox: sandbox.write_file("/tmp", b""), IsADirectoryError),
        (lambda sandbox: sandbox.remove("nowhere"), FileNotFoundError),
        (lambda sandbox: sandbox.stat("nowhere"), FileNotFoundError),
        (lambda sandbox: sandbox.move("nowhere", "else"), FileNotFoundError),
        (lambda sandbox: sandbox.read_file(""), OSError),
        (lambda sandbox: sandbox.read_file("a\0b"), OSError),
    ],
)
def test_a_failure_is_the_error_that_the_code_would_have(
    sandbox: Sandbox, act: Callable[[Sandbox], object], error: type[OSError]
) -> None:
    with pytest.raises(error) as caught:
        act(sandbox)
    assert caught.value.filename is not None
    assert sandbox.run_command("true").ok


def test_a_link_leads_within_the_sandbox_and_nowhere_else(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the host's")
    if isinstance(sandbox._opening._open_runtime().engine, OF_PROCESSES):
        return  # which is no sandbox: its guest sees what the host sees
    sandbox.run_command(f"ln -s {secret} stolen; ln -s /etc/hostname name")
    with pytest.raises(FileNotFoundError):
        sandbox.read_file("stolen")
    assert sandbox.read_file("name").strip() == b"sandbox"
    with pytest.raises(PermissionError):
        sandbox.read_file("/proc/1/mem")
    with pytest.raises(OSError, match="Read-only"):
        sandbox.write_file("/etc/new", b"")
    sandbox.run_command("rm stolen name")


def test_a_file_that_never_ends_and_one_that_never_begins_are_refused(sandbox: Sandbox) -> None:
    with pytest.raises(OSError, match="max_transfer_bytes") as caught:
        sandbox.read_file("/dev/zero")
    assert caught.value.errno == errno.EFBIG
    sandbox.run_command("mkfifo pipe")  # refused in a container
    with pytest.raises(OSError):
        sandbox.read_file("pipe")
    sandbox.run_command("rm -f pipe")


def test_a_folder_is_saved_and_loaded_into_another_sandbox(
    new_sandbox: Callable[..., Sandbox], bounded: Sandbox
) -> None:
    first, second = new_sandbox(), bounded
    first.run_command("mkdir -p a/b && echo x > a/b/c && ln -s b/c a/link && chmod 700 a/b/c; mkfifo a/pipe")
    tar = first.save()
    second.load(tar)
    assert second.read_file("a/link") == b"x\n"
    assert second.stat("a/b/c").mode == 0o700
    assert not second.exists("a/pipe")
    with tarfile.open(fileobj=io.BytesIO(tar)) as saved:
        assert sorted(saved.getnames()) == [".", "./a", "./a/b", "./a/b/c", "./a/link"]


@pytest.mark.parametrize("name", ["../out", "/tmp/out-of-it"])
def test_a_tar_that_leads_out_is_refused_in_there(sandbox: Sandbox, name: str) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    if name.startswith("/"):
        sandbox.load(file.getvalue())
        assert not sandbox.exists(name)
        sandbox.remove("tmp", recursive=True)
    else:
        with pytest.raises(InvalidParams, match="stay in the folder"):
            sandbox.load(file.getvalue())
    assert sandbox.run_command("true").ok


def test_reset_leaves_nothing(bounded: Sandbox) -> None:
    bounded.run_code("x = 1; open('file', 'w').write('1'); open('/tmp/file', 'w').write('1')")
    process = bounded.start_command("sleep 606")
    until(lambda: process.pid > 0)
    bounded.reset()
    assert process.poll() is not None
    assert bounded.list_files() == []
    assert bounded.run_code("x").error is not None
    assert bounded.run_code("1").ok
