"""Who the sandbox's user is, and which Python each way of asking finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from agent_tools.tools import CodeInterpreter

pytestmark = pytest.mark.docker


@pytest.fixture(params=["sockets", "stdio"])
def tool(request: pytest.FixtureRequest, new_tool: Callable[..., CodeInterpreter]) -> Iterator[CodeInterpreter]:
    with new_tool(transport=request.param) as tool:
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
