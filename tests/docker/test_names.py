"""Names in the sandbox: its user's, those of its Python, and its own on the loopback network."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from agent_tools.guest.kernel.next_steps import NO_NETWORK
from agent_tools.runtime.runtime import Runtime
from agent_tools.tools import CodeInterpreter
from tests.docker.lasting import lasting_tool

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def tool(docker_runtime: Runtime) -> Iterator[CodeInterpreter]:
    """A tool that tests have one after another: none touches the names that the others ask for."""
    with lasting_tool(docker_runtime) as tool:
        yield tool


def test_the_user_has_a_name_whatever_its_number(tool: CodeInterpreter) -> None:
    execution = tool.run(
        "import getpass, grp, os, pwd, subprocess\n"
        "from pathlib import Path\n"
        "open('mine', 'w').close()\n"
        "run = lambda *command: subprocess.run(command, capture_output=True, text=True).stdout.strip()\n"
        "names = [getpass.getuser(), pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name,\n"
        "         run('whoami'), run('id', '-un'), run('id', '-gn'), Path('mine').owner(), os.environ['USER']]\n"
        "print(set(names), os.path.expanduser('~sandbox') == os.path.expanduser('~'), pwd.getpwnam('root').pw_uid)"
    )
    assert execution.error is None, execution.error
    assert execution.stdout == "{'sandbox'} True 0\n"


@pytest.mark.parametrize(
    "python",
    [
        "python3",
        "python",
        "/usr/local/bin/python3",
        "/usr/local/bin/python",
        "/usr/bin/env python3",
        "bash -lc 'exec python3 \"$@\"' -",
        "env -i bash -lc 'exec python3 \"$@\"' -",
    ],
)
def test_every_python_is_the_same_and_has_the_packages(shared_tool: CodeInterpreter, python: str) -> None:
    line = f"{python} -c 'import numpy, sys; print(numpy.__file__, sys.version)'"
    execution = shared_tool.run(
        "import numpy, subprocess, sys\n"
        f"said = subprocess.run({line!r}, shell=True, capture_output=True, text=True)\n"
        "print(said.stdout == f'{numpy.__file__} {sys.version}\\n' or said)"
    )
    assert execution.stdout == "True\n", execution.outputs


def test_a_login_shell_finds_the_python_of_the_code(shared_tool: CodeInterpreter) -> None:
    found = shared_tool.run("import subprocess\nprint(subprocess.getoutput(\"bash -lc 'which python3'\"))").stdout
    assert found == "/opt/kernel/bin/python3\n"


def test_code_that_spoils_the_tables_harms_only_its_own_names(new_tool: Callable[..., CodeInterpreter]) -> None:
    with new_tool() as tool:
        assert tool.run("!rm -r ~/.names && mkdir ~/.names && ln -s /dev/zero ~/.names/passwd").error is None
        tool.restart()
        assert tool.run("1 + 1").ok


SERVED = """
import subprocess, sys, time, urllib.request
server = subprocess.Popen([sys.executable, '-m', 'http.server', '8123'], stdout=-3, stderr=-3)
for _ in range(100):
    try:
        print(urllib.request.urlopen('http://{host}:8123').status)
        break
    except OSError:  # not yet
        time.sleep(0.1)
server.kill()
"""


@pytest.mark.parametrize("host", ["localhost", "app.localhost", "sandbox"])
def test_a_server_in_the_sandbox_is_reached_by_name(tool: CodeInterpreter, host: str) -> None:
    execution = tool.run(SERVED.replace("{host}", host))
    assert execution.error is None, execution.error
    assert execution.stdout == "200\n"


KILL_ALL = """
import contextlib, os
for pid in filter(str.isdigit, os.listdir('/proc')):
    if int(pid) not in (1, os.getpid()):
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(int(pid), 9)
"""


def test_commands_and_later_kernels_know_localhost_whoever_was_killed(tool: CodeInterpreter) -> None:
    asked = "import socket; print(socket.gethostbyname('localhost'))"
    for _ in range(3):
        assert tool.run(asked).stdout == "127.0.0.1\n"
        assert tool.run(KILL_ALL).ok
    assert tool.as_sandbox.run_command(["python3", "-c", asked]).stdout == b"127.0.0.1\n"
    tool.restart()
    assert tool.run(asked).stdout == "127.0.0.1\n"


def test_no_other_name_is_known_and_that_is_told_at_once(tool: CodeInterpreter) -> None:
    execution = tool.run("import socket; socket.getaddrinfo('example.org', 443)", timeout=3)
    assert execution.error
    assert execution.error.value.startswith("[Errno -3] Temporary failure in name resolution")


SEEKERS = {
    "requests": ("import requests; requests.get('https://example.org/')", "example.org"),
    "pandas": ("pd.read_csv('https://example.org/a.csv')", "example.org"),
    "plain HTTP": ("import urllib.request; urllib.request.urlopen('http://example.org/')", "example.org:80"),
    "an address": ("import socket; socket.create_connection(('192.0.2.1', 80), 2)", "192.0.2.1:80"),
    "a name alone": ("import socket; socket.gethostbyname('example.org')", "HOST"),
    "await": ("import asyncio; await asyncio.open_connection('example.org', 443)", "example.org"),
    "a group": (
        "import asyncio\n"
        "async with asyncio.TaskGroup() as group: group.create_task(asyncio.open_connection('example.org', 80))",
        "example.org:80",
    ),
}


@pytest.mark.parametrize(("code", "host"), SEEKERS.values(), ids=SEEKERS)
def test_code_that_seeks_the_network_is_told_that_there_is_none(tool: CodeInterpreter, code: str, host: str) -> None:
    execution = tool.run(code)
    assert execution.error
    assert execution.error.text.rstrip().endswith(NO_NETWORK.format(host))
