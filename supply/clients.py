"""Other people's clients of the gateway, each as it is published: `scripts/try clients NAME...`.

Each has a venv or a folder of npm's of its own, a gateway of its own, and a script in `tests/other_clients/` that asks
two questions and reports the answers. The gateway's model sets a variable in the first and uses it in the second, so
the answers tell if both turns were in one container. Agents that also call a function of theirs between are tried by
`scripts/try integrations NAME -k openais_code`, which is called for them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Union

from rich.console import Console
from rich.table import Table

from supply import frameworks, integrations
from supply.other_clients import CLIENTS, FRAMEWORKS, KEPT, Client

ROOT = Path(__file__).resolve().parents[1]
BIN = ROOT / ".venv" / "bin"
FOLDERS = ROOT / ".venv" / "clients"
SCRIPTS = ROOT / "tests" / "other_clients"
INSTALL_SECONDS, RUN_SECONDS = 1800, 600
MAX_NOTE = 300  # characters of a failure
Command = list[Union[str, Path]]
QUIET = {"DO_NOT_TRACK": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "OTEL_SDK_DISABLED": "true"}
"""Settings of clients that would ask another server before they ask ours, or tell one of their use."""


@dataclass(frozen=True)
class Outcome:
    """What became of one client."""

    name: str
    versions: str
    verdict: str
    seconds: float
    note: str = ""

    @property
    def is_good(self) -> bool:
        """True if it did all that it should."""
        return not self.note


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the clients that were named, print the table, and return an exit code."""
    given = read(arguments)
    if not given.names:
        for name, client in CLIENTS.items():
            print(f"{name:16} {client.title} ({', '.join(client.packages) or 'no package'})")
        print(f"by scripts/try integrations -k openais_code: {', '.join(FRAMEWORKS)}")
        return 0
    names = [*CLIENTS, *FRAMEWORKS] if given.names == ["all"] else given.names
    outcomes = [framework(name) if name in FRAMEWORKS else tried(name, CLIENTS[name]) for name in names]
    show(outcomes)
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


def read(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(prog="scripts/try clients", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="clients; 'all' for every one; none: list them")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in (*CLIENTS, *FRAMEWORKS, "all")]
    if unknown:
        parser.error(f"no client {unknown[0]!r}; there are {', '.join((*CLIENTS, *FRAMEWORKS))}")
    return given


def framework(name: str) -> Outcome:
    """Try an agent framework by its own tests."""
    start = time.monotonic()
    code = integrations.main([name, "-k", "openais_code"])
    installed = integrations.versions(
        integrations.VENVS / name / "bin" / "python", frameworks.FRAMEWORKS[name].packages
    )
    note = "" if code == integrations.PASSED else "its test failed, see above"
    return Outcome(name, ", ".join(installed[1:]), "works, state kept", time.monotonic() - start, note)


def tried(name: str, client: Client) -> Outcome:
    """Install one client, run its script before a gateway of its own, and judge what that reports."""
    start = time.monotonic()
    print(f"clients: {name} …", flush=True)
    try:
        command = _with_node(name, client) if client.is_node else _with_python(name, client)
        with tempfile.TemporaryDirectory() as folder, gateway(client.settings) as url:
            told = _run(
                command, {"OPENAI_BASE_URL": url, "CLIENT_FOLDER": folder, "CLIENT_BIN": str(_bin_of(name, client))}
            )
    except subprocess.SubprocessError as exc:
        return Outcome(name, "", "does not work", time.monotonic() - start, str(exc)[-MAX_NOTE:])
    good = told == client.says
    verdict = ("works, state kept" if told == KEPT else "works") if good else "does not work"
    installed = _node_versions(name, client) if client.is_node else _python_versions(name, client)
    note = "" if good else f"it said {told}"[:MAX_NOTE]
    return Outcome(name, installed, verdict, time.monotonic() - start, note)


@contextmanager
def gateway(settings: Sequence[str]) -> Iterator[str]:
    """Start a gateway before a scripted model; yield its base URL."""
    command: Command = [BIN / "python", "-m", "tests.integrations.state_gateway", *settings]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        yield process.stdout.readline().strip()
        process.stdin.close()  # it ends by that


def show(outcomes: Sequence[Outcome]) -> None:
    """Print the table, and below it what was not as it should be."""
    table = Table("client", "versions", "verdict", "seconds")
    for each in outcomes:
        table.add_row(each.name, each.versions, each.verdict, f"{each.seconds:.0f}")
    console = Console()
    console.print(table)
    for each in outcomes:
        if each.note:
            console.print(f"{each.name}: {each.note}", markup=False, highlight=False)


def _run(command: Command, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Run a client's script; return the answers in the last line that it prints."""
    where = {**os.environ, **QUIET, "OPENAI_API_KEY": "any", "OPENAI_MODEL": "m", **environment}
    where["PATH"] = f"{BIN}:{where.get('PATH', '')}"
    done = subprocess.run(
        command, env=where, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise subprocess.SubprocessError(f"exit code {done.returncode}: {done.stderr.strip()[-MAX_NOTE:]}")
    return tuple(json.loads(lines[-1])["answers"])


def _bin_of(name: str, client: Client) -> Path:
    return FOLDERS / name / ("node_modules/.bin" if client.is_node else "bin")


def _with_python(name: str, client: Client) -> Command:
    python = FOLDERS / name / "bin" / "python"
    if not python.exists():
        make: Command = [BIN / "uv", "venv", "--quiet", "--python", sys.executable, FOLDERS / name]
        subprocess.run(make, check=True)
    if client.packages:
        install: Command = [BIN / "uv", "pip", "install", "--quiet", "--python", python, *client.packages]
        subprocess.run(install, check=True, timeout=INSTALL_SECONDS)
    return [python, SCRIPTS / client.script]


def _with_node(name: str, client: Client) -> Command:
    """Install by npm; its script stands beside its packages, as wherever they are installed."""
    folder, node = FOLDERS / name, (BIN / "node").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    npm = node.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"  # comes with most Nodes
    start: Command = [node, npm] if npm.exists() else ["npm"]
    options: Command = ["--prefix", folder, "--no-audit", "--no-fund", "--loglevel=error"]
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    environment.setdefault("NODE_EXTRA_CA_CERTS", os.environ.get("SSL_CERT_FILE", ""))
    install: Command = [*start, "install", *options, *client.packages]
    subprocess.run(install, check=True, timeout=INSTALL_SECONDS, env=environment, stdout=subprocess.DEVNULL)
    return [node, shutil.copy(SCRIPTS / client.script, folder)]


def _python_versions(name: str, client: Client) -> str:
    names = [package.split("==")[0].split("[")[0] for package in client.packages]
    code = "import importlib.metadata as m, sys; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep=', ')"
    command: Command = [FOLDERS / name / "bin" / "python", "-c", code, *names]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _node_versions(name: str, client: Client) -> str:
    names = [package.rpartition("@")[0] for package in client.packages]
    files = {each: FOLDERS / name / "node_modules" / each / "package.json" for each in names}
    return ", ".join(f"{each} {json.loads(file.read_text())['version']}" for each, file in files.items())


if __name__ == "__main__":
    raise SystemExit(main())
