"""The examples for clients of the gateway run as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clients.test_node import NODE, SCRIPTS
from tests.gateway.asking import code, commands
from tests.gateway.conftest import Gateway, NewGateway

EXAMPLES = Path(__file__).parents[2] / "examples" / "gateway_clients"
SHELL = EXAMPLES / "openai_shell.py"
CODE = (
    "squares = [n * n for n in range(1, 11)]\n"
    "open('squares.csv', 'w').write('\\n'.join(map(str, squares)))\n"
    "print('sum', sum(squares))"
)
FIRST = [code(CODE, piece=20), "They are [here](sandbox:/mnt/data/squares.csv)."]
SECOND = [code("sum(squares)"), "385."]


def command_of(example: Path, folder: Path) -> list[Any]:
    """A script of Node's stands beside its packages, as wherever they are installed."""
    if example.suffix == ".py":
        return [sys.executable, example]
    (folder / "node_modules").symlink_to(SCRIPTS / "node_modules")
    (folder / example.name).write_bytes(example.read_bytes())
    return [NODE, folder / example.name]


@pytest.mark.parametrize(
    "example",
    sorted({*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.mjs")} - {SHELL}),
    ids=lambda path: path.name,
)
def test_every_client_runs(new_gateway: NewGateway, example: Path, tmp_path: Path) -> None:
    gateway = new_gateway({"m": [*FIRST, *SECOND]})
    done = run(command_of(example, tmp_path), gateway)
    assert (done.returncode, done.stderr) == (0, "")
    assert FIRST[1] in done.stdout
    assert "sum 385" in gateway.upstream.requests[1]["messages"][-1]["content"]
    if example.stem == "openai_agents":
        assert "385.\n" in done.stdout
    else:
        assert CODE in done.stdout
        assert "> sum 385\n" in done.stdout
    if example.stem in ("openai_python", "openai_node"):
        assert done.stdout.endswith("squares.csv: 27 bytes\n")


def test_the_shell_is_followed_while_it_runs(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": [commands("echo 42; echo careful >&2; exit 3", piece=9), "Forty-two."]})
    done = run([sys.executable, SHELL], gateway)
    assert (done.returncode, done.stderr) == (0, "careful\n")
    assert done.stdout == ("$ echo 42; echo careful >&2; exit 3\n42\nForty-two.\n> {'exit_code': 3, 'type': 'exit'}\n")


def run(command: list[Any], gateway: Gateway) -> subprocess.CompletedProcess[str]:
    environment = {"OPENAI_BASE_URL": f"{gateway.url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "m"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
