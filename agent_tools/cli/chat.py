"""`agent-tools chat`: a conversation with a model that runs code."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.syntax import Syntax

from agent_tools import settings
from agent_tools.agents.assistant import Assistant
from agent_tools.agents.cancel import Cancel
from agent_tools.agents.fncall import FnCallAgent
from agent_tools.agents.react.agent import ReActChat
from agent_tools.agents.steps import (
    CallBegun,
    CallDelta,
    CallDone,
    CallOutput,
    CallReady,
    Finished,
    ReasoningDelta,
    RoundDone,
    Step,
    TextDelta,
)
from agent_tools.cli.image import ensure_with_progress
from agent_tools.cli.live_output import notes, show_figures, show_output
from agent_tools.cli.markdown_writer import MarkdownWriter
from agent_tools.cli.options import interpreter, sandbox_options
from agent_tools.errors import ModelError
from agent_tools.growing_text import GrowingText
from agent_tools.messages import USER, ContentItem, Message
from agent_tools.text import SafePieces, neutralise

_ENDINGS = {
    "cancelled": "Stopped.",
    "rounds": "The model reached the limit of calls.",
    "length": "The answer reached the model's token limit.",
}


class Talk:
    """A conversation with an agent. The model's text goes to stdout, as Markdown on a terminal; all else to stderr.

    Files that its code writes are named with `folder` before them.
    """

    def __init__(self, agent: FnCallAgent, files: Sequence[str] = (), folder: Path = Path()) -> None:
        self._agent = agent
        self._folder = folder
        self._files = tuple(ContentItem(file=file) for file in files)  # come with the first question
        self._messages: list[Message] = []

    def ask(self, question: str) -> bool:
        """Run a turn and show it; Ctrl-C stops it. Return True if the model answered to the end."""
        before = len(self._messages)
        files = () if self._messages else self._files
        self._messages.append(Message(USER, (*files, ContentItem(text=question))))
        cancel, view, reason = Cancel(), _View(self._folder), ""
        try:
            with _stopped_by_interrupt(cancel), closing(self._agent.steps(self._messages, cancel)) as steps:
                for step in steps:
                    view.show(step)
                    if isinstance(step, RoundDone):
                        self._messages += step.messages
                    if isinstance(step, Finished):
                        reason = step.reason
        except ModelError as exc:
            del self._messages[before:]  # so that the question can be asked again
            notes.print(f"{exc} {neutralise(exc.detail)}".rstrip(), style="red", markup=False)
        if reason in _ENDINGS:
            notes.print(_ENDINGS[reason], style="yellow")
        return reason == "stop"


class _View:
    """Prints steps. Code is coloured line by line, as its lines are complete; Markdown is rendered by blocks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._line = GrowingText()  # of code, not complete yet
        self._syntax = Syntax("", "python", background_color="default")
        self._at_line_start = True
        self._is_thinking = False
        self._answer, self._thought = SafePieces(), SafePieces()
        console = Console(file=sys.stdout)
        self._markdown = MarkdownWriter(console, folder) if console.is_terminal else None

    def show(self, step: Step) -> None:
        self._end_reasoning(step)
        match step:
            case TextDelta(text):
                self._say(self._answer.feed(text))
            case ReasoningDelta(text):
                notes.print(self._thought.feed(text), style="dim", markup=False, end="", soft_wrap=True)
            case CallBegun(_, name):
                self._end_line()
                notes.print(f"── {neutralise(name)}", style="dim", markup=False)
            case CallDelta(_, _, code):
                self._code(code)
            case CallReady(call, code):
                self._code("\n" if self._line else "")
                if code is None:
                    notes.print(neutralise(call.arguments), style="dim", markup=False, soft_wrap=True)
            case CallOutput(_, output):
                show_output(output, sys.stderr)
            case CallDone():
                self._done(step)
            case Finished():
                self._end_line()

    def _say(self, text: str) -> None:
        if self._markdown:
            self._markdown.write(text)
            return
        sys.stdout.write(text)
        sys.stdout.flush()
        self._at_line_start = text.endswith("\n") if text else self._at_line_start

    def _end_reasoning(self, step: Step) -> None:
        was_thinking, self._is_thinking = self._is_thinking, isinstance(step, ReasoningDelta)
        if was_thinking and not self._is_thinking:
            notes.print(self._thought.finish(), style="dim", markup=False, soft_wrap=True)

    def _end_line(self) -> None:
        self._say(self._answer.finish())
        if self._markdown:
            self._markdown.end()
        elif not self._at_line_start:
            self._say("\n")

    def _code(self, code: str) -> None:
        first, *others = neutralise(code).split("\n")
        self._line.append(first)
        for line in others:
            notes.print(self._syntax.highlight(str(self._line)), end="", soft_wrap=True)
            self._line = GrowingText()
            self._line.append(line)

    def _done(self, step: CallDone) -> None:
        if step.execution:
            show_figures(step.execution, self._folder)
        else:
            style = "red" if step.failure else "dim"
            notes.print(neutralise(step.text), style=style, markup=False, soft_wrap=True)


@contextlib.contextmanager
def _stopped_by_interrupt(cancel: Cancel) -> Iterator[None]:
    """Make Ctrl-C set `cancel`, and do nothing else.

    A thread of its own sets it: the code that a signal interrupts may hold the very lock that `set` needs.
    """

    def stop(*_: object) -> None:
        threading.Thread(target=cancel.set, name="stop", daemon=True).start()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


SYSTEM = "You are a helpful assistant that computes and draws with Python, in the tool code_interpreter, when it helps."
HINT = "Ctrl-C: stop the turn   Ctrl-C twice, Ctrl-D or exit: leave"


@click.command()
@click.option("-m", "--model", help="The model's name on its server.  [default: $AGENT_TOOLS_MODEL]")
@click.option("--base-url", help="Base URL of an OpenAI-compatible server.  [default: from the environment]")
@click.option("--api-key-env", metavar="NAME", help="The environment variable that holds the server's key.")
@click.option("-f", "--file", "files", multiple=True, help="A path or URL to talk about; repeatable.")
@click.option("--once", metavar="QUESTION", help="Ask this, print the answer, and exit.")
@click.option("--system", default=SYSTEM, help="Instructions for the model.")
@click.option("--react", is_flag=True, help="Let the model write its calls as text, for models that cannot call tools.")
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
        ensure_with_progress(tool.options)
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
