import json
import os
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from agent_tools import __version__
from agent_tools.cli import cli, main
from agent_tools.cli.live_output import show_files
from agent_tools.cli.options import Size
from agent_tools.limits import GIB, MIB
from agent_tools.results.execution import Changes, FileChange

RunHere = Callable[..., "subprocess.CompletedProcess[str]"]


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with the words that name it."""
    yield path, group
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield (*path, name), command


COMMANDS = dict(commands(cli))


def options(path: tuple[str, ...]) -> list[click.Option]:
    return [param for param in COMMANDS[path].params if isinstance(param, click.Option)]


def python(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A process of its own, on a machine without an engine."""
    environ = {**os.environ, "DOCKER_HOST": "unix:///nonexistent", "HOME": str(folder)}
    paths = os.pathsep.join(path for path in (str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")) if path)
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**environ, "PYTHONPATH": paths},
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunHere:
    """The command line in this process, which has imported all that a process of its own imports anew."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    monkeypatch.setenv("HOME", str(tmp_path))

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        monkeypatch.setattr(sys, "argv", ["agent-tools", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        assert isinstance(left.value.code, int)
        return subprocess.CompletedProcess(arguments, left.value.code, *capsys.readouterr())

    return run


def test_all_commands_are_there() -> None:
    assert {" ".join(path) for path in COMMANDS} == {
        *("", "run", "repl", "chat", "serve", "doctor", "clean", "mcp", "mcp config"),
        *("codex", "codex config", "worker"),  # what is in a worker is seen where its extra is
        *("bundle", "image", "image build", "image gateway", "image load", "image pull", "image save"),
        *("image show", "image rm"),
        *("fleet", "kubernetes", "kubernetes pool"),  # what is in a fleet is seen where ray is
        *("keys", "keys add", "keys limit", "keys list", "keys purge", "keys revoke"),
        *("usage", "backup", "restore", "skills", "skills check"),
        *("jupyter", "jupyter install", "jupyter kernel", "jupyter serve"),
    }


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_shows_every_option(flag: str) -> None:
    shown = {path: CliRunner().invoke(cli, [*path, flag]) for path in COMMANDS}
    assert [path for path, result in shown.items() if result.exit_code] == []
    assert [
        (*path, opt)
        for path, result in shown.items()
        for option in options(path)
        for opt in option.opts
        if opt not in result.output
    ] == []


def test_every_option_has_a_meaning() -> None:
    assert [(*path, option.name) for path in COMMANDS for option in options(path) if not option.help] == []


def test_every_command_has_a_line_of_its_own() -> None:
    assert [path for path, command in COMMANDS.items() if not command.get_short_help_str(limit=200)] == []


def test_the_version_is_the_packages() -> None:
    assert CliRunner().invoke(cli, ["--version"]).output == f"agent-tools, version {__version__}\n"


@pytest.mark.parametrize("name", ["run", "repl", "chat"])
def test_what_runs_code_has_the_sandboxs_options(name: str) -> None:
    found = {opt for param in COMMANDS[(name,)].params for opt in param.opts}
    assert {
        "--work-dir",
        "--memory",
        "--cpus",
        "--network",
        "--allow",
        "--package",
        "--isolation",
        "--oci-runtime",
        "--timeout",
    } <= found


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("0", 0), ("100", 100), ("1k", 1024), ("512m", 512 * MIB), ("2g", 2 * GIB), ("2G", 2 * GIB)),
        *(("64kb", 65536), ("2GB", 2 * GIB), ("100b", 100), ("1.5k", 1536), ("0.5g", GIB // 2), (" 1m ", MIB)),
        *(("3M", 3 * MIB), (4096, 4096), ("1t", 1024 * GIB), ("2 GiB", 2 * GIB)),
    ],
)
def test_a_size_is_bytes_with_a_unit(text: object, size: int) -> None:
    assert Size().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "m", "-1", "+1", "1x", "1  m", "1mm", "1,5g", "1e3", "nan", "inf", "0x10", "1.g"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"is not a size; write e\.g\. 512m or 2g"):
        Size().convert(text, None, None)


USAGE = {
    "missing script": (["run", "none.py"], "There is no file 'none.py'"),
    "a folder": (["run", "."], "is a directory"),
    "a notebook": (["run", "n.ipynb"], "is a notebook"),
    "unknown option": (["run", "--privileged"], "No such option"),
    "unknown command": (["fly"], "No such command"),
    "misspelt command": (["rnu"], "Did you mean 'run'?"),
    "no size": (["run", "-c", "1", "--memory", "lots"], "is not a size"),
    "a network and a list": (["run", "-c", "1", "--network", "bridge", "--allow", "pypi"], "not both"),
    "no number": (["run", "-c", "1", "--cpus", "many"], "is not a valid float"),
    "no folder": (["run", "-c", "1", "--work-dir", ""], "it is empty"),
    "no data dir": (["serve", "--upstream", "http://u", "--data-dir", ""], "it is empty"),
    "no session": (["repl", "--resume", ""], "it is empty"),
    "no key on stdin": (["keys", "--data-dir", ".", "add", "a", "--stdin"], "no key came"),
    "no key on stdin, at the end": (["keys", "add", "a", "--stdin", "--data-dir", "."], "no key came"),
    "no such file": (["chat", "--model", "m", "--once", "hi", "--file", "nosuch"], "there is no file 'nosuch'"),
    "no time for a call": (["chat", "--model", "m", "--timeout", "0"], "is not in the range"),
    "no port": (["jupyter", "serve", "--port", "65536"], "is not in the range"),
    "no kernels": (["jupyter", "serve", "--max-kernels", "0"], "is not in the range"),
    "no time": (["jupyter", "serve", "--idle-timeout", "nan"], "is not a valid integer"),
    "a server that runs already": (["mcp", "--http", "localhost:1", "config", "cursor"], "clients start this one"),
}


@pytest.mark.parametrize(("arguments", "reason"), USAGE.values(), ids=USAGE.keys())
def test_wrong_usage_is_told_and_exits_with_2(
    arguments: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("1")
    (tmp_path / "n.ipynb").write_text("{}")
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert reason in result.output


def test_paths_for_a_client_are_absolute_and_in_its_own_alphabet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("🙂").mkdir()
    options = ["--folder", "🙂", "--read-only", "--diff", "x.patch", "--audit", "log"]
    (environment,) = tomllib.loads(CliRunner().invoke(cli, ["codex", *options, "config"]).stdout)["environments"]
    told = set(environment["args"])
    assert told >= {f"{tmp_path}/🙂", f"{tmp_path}/x.patch", f"{tmp_path}/log"}
    done = CliRunner().invoke(cli, ["mcp", "--audit", "🙂/log", "config", "codex"])
    assert f"{tmp_path}/🙂/log" in tomllib.loads(done.stdout)["mcp_servers"]["python"]["args"]
    done = CliRunner().invoke(cli, ["mcp", "--audit", "-", "config", "cursor"])
    assert json.loads(done.stdout)["mcpServers"]["python"]["args"][-2:] == ["--audit", "-"]


def test_the_options_of_mcp_are_in_what_a_client_is_told() -> None:
    done = CliRunner().invoke(
        cli, ["mcp", "--memory", "16g", "--allow", "pypi", "--allow", "a.org", "config", "cursor"]
    )
    assert done.exit_code == 0
    (server,) = json.loads(done.stdout)["mcpServers"].values()
    assert server["args"][-6:] == ["--allow", "pypi", "--allow", "a.org", "--memory", "16g"]


@pytest.mark.parametrize(
    "command",
    [
        "keys {} list",
        "keys list {}",
        "keys revoke a {}",
        "keys {} revoke a",
        "keys purge {} a --yes",
        "keys limit a {}",
    ],
)
def test_keys_are_looked_for_where_there_are_some(command: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, command.format(f"--data-dir {tmp_path / 'typo'}").split())
    assert "No gateway has its database in" in str(done.exception)
    assert not (tmp_path / "typo").exists()


def test_written_files_are_shown_with_their_paths(capsys: pytest.CaptureFixture[str]) -> None:
    named = [("a.csv", True), ("b/figure-001.png", True), ("c\x1b[2J\n.txt", False)]
    changes = [FileChange(name, 2048, is_new=is_new) for name, is_new in named]
    changes += [FileChange(f"n{each}", 1, is_new=True) for each in range(20)]
    show_files(Changes(changes, is_complete=False), Path("/w"))
    shown = capsys.readouterr().err.splitlines()
    assert shown[:3] == ["file: /w/a.csv (2 KiB)", "figure: /w/b/figure-001.png", "file: /w/c\\n.txt (2 KiB, changed)"]
    assert shown[-2:] == ["and 3 more files in /w", f"files: {Changes(is_complete=False).note}"]


UNUSABLE = {
    "the host's network": ["--network", "host"],
    "another container's network": ["--network", "container:db"],
    "a name that is none": ["--allow", "https://example.org/"],
    "too little memory": ["--memory", "1m"],
    "no memory": ["--memory", "0"],
    "no processor": ["--cpus", "0"],
    "fewer processors than none": ["--cpus", "-1"],
    "a package from elsewhere": ["--package", "x @ https://evil.example/x.whl"],
}


@pytest.mark.parametrize("options", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_an_unusable_option_is_one_line_and_exits_with_2(options: list[str], run_here: RunHere) -> None:
    done = run_here("run", "-c", "1", *options)
    assert done.returncode == 2
    assert done.stderr.startswith("agent-tools: ")
    assert len(done.stderr.splitlines()) == 1


ONE_AFTER_ANOTHER = """
import contextlib, io, json, sys
from agent_tools.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:], out, err = arguments, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as ending:
            code = ending.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def test_without_an_engine_there_is_one_clear_line_and_exit_code_3(tmp_path: Path) -> None:
    said = "agent-tools: No engine answers (No such file or directory)."
    commands = [["run", "-c", "1"], ["repl"], ["clean"], ["image", "show"], ["image", "build"], ["image", "rm"]]
    done = python(tmp_path, "-c", ONE_AFTER_ANOTHER, json.dumps(commands))  # this process may have an engine already
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(commands), done.stderr
    for command, (code, out, err) in zip(commands, answers):
        assert (code, out) == (3, ""), command
        assert err.startswith(said), command
        assert "DOCKER_HOST" in err, command
        assert len(err.splitlines()) == 1, command


@pytest.mark.parametrize("address", ["foo://x", "localhost:2375"])
def test_an_address_that_is_none_is_told_as_what_it_is(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    result = CliRunner().invoke(cli, ["run", "-c", "1", "--work-dir", str(tmp_path)])
    assert "DOCKER_HOST must begin with unix://, tcp:// or ssh://" in str(result.exception)


def test_the_doctor_names_an_engine_that_does_not_answer(tmp_path: Path) -> None:
    done = python(tmp_path, "-m", "agent_tools", "doctor")
    assert done.returncode == 1
    for words in ("python", "engine", "fail", "no answer", "No engine answers"):
        assert words in done.stdout
    assert "uninstall" not in done.stdout
    assert done.stderr == ""


def test_the_doctor_warns_of_the_package_of_another_project_with_nearly_our_name(tmp_path: Path) -> None:
    foreign = tmp_path / "agent_tools-1.0.1.dist-info"
    foreign.mkdir()
    (foreign / "METADATA").write_text("Metadata-Version: 2.1\nName: agent-tools\nVersion: 1.0.1\n")
    said = python(tmp_path, "-m", "agent_tools", "doctor").stdout
    for words in ("1.0.1", "uninstall", "agent-tools-sandbox"):
        assert words in said


@pytest.mark.parametrize("option", [["--json"], ["--runtime", "runsc"], ["--container", "box"]], ids=" ".join)
def test_doctors_options_for_the_probe_need_the_probe(option: list[str]) -> None:
    result = CliRunner().invoke(cli, ["doctor", *option])
    assert result.exit_code == 2
    assert "go with --probe" in result.output


def test_a_container_is_probed_under_the_runtime_it_has() -> None:
    result = CliRunner().invoke(cli, ["doctor", "--probe", "--container", "box", "--runtime", "runsc"])
    assert result.exit_code == 2
    assert "a container has its own" in result.output


def test_a_probe_without_an_engine_is_a_failure_of_ours(run_here: RunHere) -> None:
    done = run_here("doctor", "--probe", "--container", "box")
    assert done.returncode == 3
    assert "No engine answers" in done.stderr
    assert done.stdout == ""


def test_chat_wants_to_know_the_model(run_here: RunHere) -> None:
    done = run_here("chat", "--once", "Hi")
    assert done.returncode == 2
    assert "Give --model, or set AGENT_TOOLS_MODEL." in done.stderr


def test_chat_wants_the_key_it_was_told_of(run_here: RunHere) -> None:
    done = run_here("chat", "--model", "m", "--api-key-env", "NO_SUCH_KEY", "--once", "Hi")
    assert done.returncode == 2
    assert "the environment variable NO_SUCH_KEY is not set" in done.stderr


def test_chat_says_where_a_model_may_be_found(run_here: RunHere) -> None:
    done = run_here("chat", "--model", "m", "--once", "Hi")
    assert done.returncode == 3
    assert "Set OPENAI_BASE_URL" in done.stderr


@pytest.mark.parametrize(
    ("stdout", "code", "told"), [("> /dev/full", 3, "could not be written: No space left on device."), (">&-", 0, "")]
)
def test_output_that_nobody_takes_is_no_bug(stdout: str, code: int, told: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m agent_tools run --help {stdout}', sys.executable],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == code
    assert done.stderr.partition("agent-tools: ")[2].endswith(f"{told}\n" if told else "")
    assert "Traceback" not in done.stderr


def test_a_closed_input_is_an_empty_one(tmp_path: Path) -> None:
    command = ["sh", "-c", '"$0" -m agent_tools run --work-dir . <&-', sys.executable]
    environ = {**os.environ, "DOCKER_HOST": "unix:///nonexistent", "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environ)
    assert (done.returncode, "No engine answers" in done.stderr) == (3, True), done.stderr


def test_doctor_checks_the_engine_that_is_set(run_here: RunHere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TOOLS_ENGINE", "ray")
    done = run_here("doctor")
    assert done.returncode == 1
    assert "sandbox: did not run on ray" in done.stdout
    assert "Docker" not in done.stdout


def test_serve_prints_its_settings_if_asked_and_masks_secrets(tmp_path: Path) -> None:
    given = ["--upstream", "http://u/v1", "--data-dir", str(tmp_path / "d"), "--set", "max_sandboxes=3"]
    done = CliRunner().invoke(cli, ["serve", *given, "--api-key", "key-of-the-test", "--print-settings"])
    assert done.exit_code == 0
    assert "max_sandboxes = 3\n" in done.stdout
    assert "api_keys = (set)\n" in done.stdout
    assert "key-of-the-test" not in done.output
    assert not (tmp_path / "d").exists()


def test_words_that_people_try_first_are_answered() -> None:
    for words in ([], ["help"], ["--help"]):
        done = CliRunner().invoke(cli, words)
        assert (done.exit_code, "agent-tools doctor" in done.output) == (0, True), words
    assert CliRunner().invoke(cli, ["version"]).output == f"{__version__}\n"
    assert "Run SCRIPT with ARGS" in CliRunner().invoke(cli, ["help", "run"]).output


def test_the_place_of_claude_desktops_configuration_is_named() -> None:
    done = CliRunner().invoke(cli, ["mcp", "config", "claude-desktop"])
    assert "%APPDATA%" in done.stderr
    assert "Library/Application Support/Claude" in done.stderr


def test_the_port_of_another_program_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(
            cli, ["serve", "--upstream", "http://u/v1", "--data-dir", str(tmp_path), "--port", port]
        )
    assert f"--port: 127.0.0.1:{port} cannot be listened on" in str(done.exception)
    assert "Give another port" in str(done.exception)
