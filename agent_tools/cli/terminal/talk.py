"""One conversation on a terminal: its turns are shown while they run, and can be stopped."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.syntax import Syntax

from agent_tools.agents.cancel import Cancel
from agent_tools.agents.fncall import FnCallAgent
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
from agent_tools.cli.terminal.show import notes, show_figures, show_output
from agent_tools.errors import ModelError
from agent_tools.messages import USER, ContentItem, Message
from agent_tools.text import neutralise

# Markdown that arrives in pieces, rendered on a terminal block by block.
#
# A block is printed when the next one begins, or at the end: a fence of code, a list or a paragraph is never cut. The
# address of a link is printed beside its label, so no label hides where a link leads.


MAX_BLOCK = 20_000  # characters; a larger block is printed as it is
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class MarkdownWriter:
    """Prints to `console`. Each character is looked at once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._line = ""
        self._block: list[str] = []
        self._size = 0
        self._fence = ""
        self._is_over = False  # a blank line came, which ends the block unless an indented line follows

    def write(self, text: str) -> None:
        """Take the next piece."""
        *lines, rest = text.split("\n")
        for line in lines:
            self._take(self._line + line)
            self._line = ""
        self._line += rest

    def end(self) -> None:
        """Print what is left."""
        if self._line:
            self._take(self._line)
            self._line = ""
        self._print()

    def _take(self, line: str) -> None:
        if self._is_over and line.strip() and not line.startswith(("  ", "\t")):
            self._print()
        self._block.append(line)
        self._size += len(line)
        fence = _FENCE.match(line)
        if self._fence:
            closes = fence and fence[1].startswith(self._fence) and not line[fence.end() :].strip()
            self._fence = "" if closes else self._fence
        elif fence:
            self._fence = fence[1]
        self._is_over = not self._fence and (self._is_over or bool(self._block)) and not line.strip()

    def _print(self) -> None:
        text = "\n".join(self._block)
        if text.strip():
            shown = Markdown(text, hyperlinks=False) if self._size <= MAX_BLOCK else text
            self._console.print(shown, markup=False, highlight=False)
            self._console.print()
        self._block, self._size, self._fence, self._is_over = [], 0, "", False


_ENDINGS = {
    "cancelled": "Stopped.",
    "rounds": "The model wanted more calls than it may make.",
    "length": "The answer reached the model's token limit.",
}


class Talk:
    """A conversation with an agent. The model's words go to stdout, as Markdown on a terminal; all else to stderr.

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
        self._line = ""  # of code, not complete yet
        self._syntax = Syntax("", "python", background_color="default")
        self._at_line_start = True
        console = Console(file=sys.stdout)
        self._markdown = MarkdownWriter(console) if console.is_terminal else None

    def show(self, step: Step) -> None:
        match step:
            case TextDelta(text):
                self._say(neutralise(text))
            case ReasoningDelta(text):
                notes.print(neutralise(text), style="dim", markup=False, end="", soft_wrap=True)
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

    def _end_line(self) -> None:
        if self._markdown:
            self._markdown.end()
        elif not self._at_line_start:
            self._say("\n")

    def _code(self, code: str) -> None:
        *lines, self._line = (self._line + neutralise(code)).split("\n")
        for line in lines:
            notes.print(self._syntax.highlight(line), end="", soft_wrap=True)

    def _done(self, step: CallDone) -> None:
        if step.execution:
            show_figures(step.execution, self._folder)
        else:
            style = "red" if step.failure else "dim"
            notes.print(neutralise(step.text), style=style, markup=False, soft_wrap=True)


@contextlib.contextmanager
def _stopped_by_interrupt(cancel: Cancel) -> Iterator[None]:
    """Have Ctrl-C set `cancel`, and do nothing else.

    A thread of its own sets it: the code that a signal interrupts may hold the very lock that `set` needs.
    """

    def stop(*_: object) -> None:
        threading.Thread(target=cancel.set, name="stop", daemon=True).start()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
