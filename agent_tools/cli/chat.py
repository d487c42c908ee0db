"""`agent-tools chat`: a conversation with a model that runs code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from agent_tools import settings
from agent_tools.agents.fncall import Assistant
from agent_tools.agents.react.agent import ReActChat
from agent_tools.cli.image import ensure_with_progress
from agent_tools.cli.options import interpreter, sandbox_options
from agent_tools.cli.terminal.show import notes
from agent_tools.cli.terminal.talk import Talk

SYSTEM = "You are a helpful assistant that computes and draws with Python, in the tool code_interpreter, when it helps."
HINT = "Ctrl-C: stop the turn   Ctrl-C twice, Ctrl-D or exit: leave"


@click.command()
@click.option("-m", "--model", help="The model's name on its server.  [default: $AGENT_TOOLS_MODEL]")
@click.option("--base-url", help="Base URL of an OpenAI-compatible server.  [default: from the environment]")
@click.option("--api-key-env", metavar="NAME", help="The environment variable that holds the server's key.")
@click.option("-f", "--file", "files", multiple=True, help="A path or URL to talk about; repeatable.")
@click.option("--once", metavar="QUESTION", help="Ask this, print the answer, and exit.")
@click.option("--system", default=SYSTEM, help="Instructions for the model.")
@click.option(
    "--react", is_flag=True, help="Have the model write its calls as text, for models that cannot call tools."
)
@click.option(
    "-t",
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    help="Seconds one call's code may run.  [default: 30]",
)
@sandbox_options
def chat(model: str | None, files: tuple[str, ...], once: str | None, **options: Any) -> None:
    """Talk to a model that writes Python and runs it in a sandbox.

    The model's answer goes to standard output; its code, the code's output and the paths of figures go to standard
    error. Exit code with --once: 0 if the model answered; 1 if it did not.

    \b
    agent-tools chat --model qwen-max --file sales.csv
    agent-tools chat --model gpt-4o --once 'What is the 1000th prime?'
    agent-tools chat --model llama3 --base-url http://localhost:8000/v1 --react
    agent-tools chat --model m --base-url https://host/v1 --api-key-env HOST_KEY
    """  # noqa: D301  (a backspace is click's mark for text that keeps its lines)
    for file in files:
        if "://" not in file and not Path(file).expanduser().is_file():
            raise click.UsageError(f"--file: there is no file {file!r}.")
    llm = _model(model, options.pop("base_url"), options.pop("api_key_env"))
    kind = ReActChat if options.pop("react") else Assistant
    system, timeout = options.pop("system"), options.pop("timeout")
    with interpreter(**options) as tool, kind([tool], llm, system, call_timeout=timeout) as agent:
        if not tool.options.image:
            ensure_with_progress(tool.options.recipe)
        talk = Talk(agent, files, Path(tool.work_dir).absolute())
        if once is not None:
            sys.exit(0 if talk.ask(once) else 1)
        notes.print(f"{llm['model']}, with Python in a sandbox.\n{HINT}", style="dim", markup=False)
        _converse(talk)


def _converse(talk: Talk) -> None:
    """Ask and answer until the user leaves."""
    wants_to_leave = False
    while True:
        try:
            question = input("> ").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            if wants_to_leave:
                return
            wants_to_leave = True
            notes.print("\nCtrl-C again to leave.", style="dim")
            continue
        wants_to_leave = False
        if question in {"exit", "quit"}:
            return
        if question:
            talk.ask(question)


def _model(model: str | None, base_url: str | None, api_key_env: str | None) -> dict[str, Any]:
    name = model or settings.model_name()
    if not name:
        raise click.UsageError("Which model? Give --model, or set AGENT_TOOLS_MODEL.")
    key = settings.api_key(api_key_env) if api_key_env else None
    if api_key_env and not key:
        raise click.UsageError(f"--api-key-env: the environment variable {api_key_env} is not set.")
    return {"model": name, **({"base_url": base_url} if base_url else {}), **({"api_key": key} if key else {})}
