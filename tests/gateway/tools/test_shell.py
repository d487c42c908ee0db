"""The shell as a tool of its own, on a container."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_tools.containers.containers import Containers
from agent_tools.containers.spec import ContainerSpec
from agent_tools.errors import InvalidParams, ToolServiceError
from agent_tools.gateway.config import GatewayConfig
from agent_tools.gateway.store.store import Store
from agent_tools.gateway.tools.lease import ContainerLease
from agent_tools.gateway.tools.shell import ContainerShell
from agent_tools.gateway.tools.shell_call import ShellCall, read_shell_call
from agent_tools.runtime.runtime import Runtime
from agent_tools.tools.command_tool import CommandEnd, CommandText


@pytest.fixture
def containers(process_runtime: Runtime, work_dir: Path) -> Iterator[Containers]:
    config = GatewayConfig(upstream="http://localhost/v1", data_dir=work_dir, pool=0)
    store = Store(config.database_url)
    made = Containers(config, store, process_runtime)
    yield made
    made.close()
    store.close()


@pytest.fixture
def shell(containers: Containers) -> Iterator[ContainerShell]:
    lease = ContainerLease(containers, containers.create("me", ContainerSpec("a")).id)
    yield ContainerShell(lease)
    lease.close()


def test_a_call_returns_what_a_model_is_told(shell: ContainerShell) -> None:
    told = shell.call({"commands": ["echo '```'; printf 'a\\rb'"]})
    assert told == "exit code 0\n\nstdout:\n\n````\n```\nb\n````"


def test_nothing_runs_once_the_call_is_cancelled(shell: ContainerShell, containers: Containers) -> None:
    cancelled = threading.Event()
    cancelled.set()
    (end,) = shell.run('{"commands": ["touch a"]}', cancelled)
    assert end == CommandEnd(0, 137, was_cancelled=True)
    assert not (containers.folder(shell.lease.container_id) / "a").exists()


def test_a_call_that_is_closed_early_ends_its_commands(shell: ContainerShell, containers: Containers) -> None:
    running = shell.run('{"commands": ["echo begun; sleep 60; touch a", "sleep 60"]}', threading.Event())
    assert next(running) == CommandText(0, "stdout", "begun\n")
    running.close()
    assert shell.call('{"commands": ["true"]}') == "exit code 0\n\n(no output)"
    assert not (containers.folder(shell.lease.container_id) / "a").exists()


def test_a_container_that_is_deleted_meanwhile_fails_the_call(shell: ContainerShell, containers: Containers) -> None:
    running = shell.run('{"commands": ["echo begun; sleep 60"]}', threading.Event())
    next(running)
    containers.delete("me", shell.lease.container_id)
    with pytest.raises(ToolServiceError, match="sandbox ended"):
        list(running)


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        ('{"commands": ["a", "b"]}', ShellCall(("a", "b"))),
        ({"commands": "a", "timeout_ms": 1.5, "max_output_length": 0}, ShellCall(("a",), 1, 0)),
        ('```json\n{"command": "a"}\n```', ShellCall(("a",))),
        ("{commands: ['a'], timeout_ms: null}", ShellCall(("a",))),
    ],
)
def test_calls_are_read_generously(arguments: object, call: ShellCall) -> None:
    assert read_shell_call(arguments) == call


@pytest.mark.parametrize(
    "arguments",
    [
        *("ls -l", "[]", "{}", '{"commands": []}', '{"commands": [["ls"]]}', '{"commands": ["a", null]}', 7),
        *('{"commands": ["\\u0000"]}', '{"commands": ["\\ud800"]}', '{"commands": ["a"], "timeout_ms": 0}'),
        *('{"commands": ["a"], "timeout_ms": "1"}', '{"commands": ["a"], "max_output_length": -1}'),
        *('{"commands": ["a"], "timeout_ms": true}', '{"commands": ["a"], "timeout_ms": NaN}'),
        {"commands": ["x" * 2_000_000]},
    ],
)
def test_what_is_no_call_is_never_guessed(arguments: object) -> None:
    with pytest.raises(InvalidParams):
        read_shell_call(arguments)


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (r"""{"commands": ["printf '%s\n' a12 b3 | grep -oP '\d+'"]}""", "printf '%s\n' a12 b3 | grep -oP '\\d+'"),
        (r"""{"commands": ["find . -name \*.log -exec echo {} \;"]}""", r"find . -name \*.log -exec echo {} \;"),
        (r"""{"commands": ["echo 'it'\''s'"]}""", r"echo 'it'\''s'"),
        (r"""{"commands": ["python -c \'print(1)\""]}""", None),
    ],
)
def test_invalid_escapes_in_commands_keep_their_backslashes(arguments: str, command: str | None) -> None:
    if command is None:
        with pytest.raises(InvalidParams, match="not JSON"):
            read_shell_call(arguments)
        return
    call = read_shell_call(arguments)
    assert call.commands == (command,)
    assert "invalid escapes" in call.notes[0]


def test_the_answer_says_that_escapes_were_invalid(shell: ContainerShell) -> None:
    answer = shell.call(r"""{"commands": ["echo a12 | grep -oP '\d+'"]}""")
    assert "note: The JSON had invalid escapes (\\d), read literally." in answer
    assert "12" in answer
