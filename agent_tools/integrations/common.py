"""The texts of the tool for models, the same in every framework."""

from __future__ import annotations

from collections.abc import Mapping

from agent_tools import AsyncSandbox
from agent_tools.engines.engine import GUEST_WORK_DIR
from agent_tools.results.commands import CommandResult
from agent_tools.results.execution import Execution, Picture, Text
from agent_tools.text import one_line

NAME = "code_interpreter"
CODE = "The Python code. Magics and `await` work; show figures with plt.show()."
DESCRIPTION = (
    "Runs Python in a sandbox with numpy, pandas, scipy, scikit-learn and matplotlib. Variables and files stay from "
    "call to call. The answer has what the code printed, the value of its last expression, its figures, and the files "
    "it wrote."
)
MAX_FILES = 20  # paths of files in an answer


def answer(execution: Execution) -> list[Text | Picture]:
    """Return content for a chat model: text and pictures in order, and the paths of written files."""
    shown = execution.blocks()
    names = [f"{GUEST_WORK_DIR}/{one_line(change.name)} ({change.size:,} bytes)" for change in execution.changes]
    if names:
        more = f" and {len(names) - MAX_FILES:,} more" if len(names) > MAX_FILES else ""
        shown.append(Text(f"files written: {', '.join(names[:MAX_FILES])}{more}"))
    if note := execution.changed.note:
        shown.append(Text(f"files written: {note}"))
    return shown


def text_of(execution: Execution) -> str:
    """Return an answer for a text-only model; a note replaces each picture."""
    shown = [each.text if isinstance(each, Text) else "[a figure]" for each in answer(execution)]
    return "\n\n".join(shown)


def ending_of(done: CommandResult) -> str:
    """Return a line that says why the sandbox ended a command; '' if it ended by itself, or if stderr says so."""
    return f"\n[{done.reason}]" if done.reason and done.reason not in done.texts[1] else ""


def sandbox_of(given: object) -> AsyncSandbox:
    """Return the sandbox to use; options make a new one.

    Raises:
        TypeError: it is neither a sandbox of this kind nor options.
        InvalidParams: an option is unknown or unusable.
    """
    if given is None or isinstance(given, Mapping):
        return AsyncSandbox(dict(given or {}))
    if not isinstance(given, AsyncSandbox):
        raise TypeError(f"{given!r:.80} is not an AsyncSandbox: give one, or a dict of its options.")
    return given
