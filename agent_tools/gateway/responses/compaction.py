"""Has a model sum up a conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent_tools.agents.cancel import Cancel
from agent_tools.agents.steps import Finished, RoundDone, Step, TextDelta
from agent_tools.agents.turn.loop import ToolLoop
from agent_tools.gateway.responses.summary_item import ASKED
from agent_tools.models.base import JsonObject, Usage


def summarised(
    turn: ToolLoop, messages: Sequence[JsonObject], cancel: Cancel, note: Callable[[Step], object]
) -> tuple[str, Usage]:
    """Return the summary and the tokens it took; '' if the model wrote none, or was interrupted.

    `note` gets the steps that cost tokens.

    Raises:
        ModelError: the model could not be asked.
    """
    found, usage, is_whole = list[str](), Usage(), True
    for step in turn.run([*messages, {"role": "user", "content": ASKED}], cancel):
        if isinstance(step, TextDelta):
            found.append(step.text)
        elif isinstance(step, RoundDone):
            usage += step.usage or Usage()
            note(step)
        elif isinstance(step, Finished):
            is_whole = step.reason == "stop"
    return "".join(found).strip() if is_whole else "", usage
