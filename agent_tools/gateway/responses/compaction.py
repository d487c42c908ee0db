"""Summarises a conversation that has more tokens than its client allows, before the model is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agent_tools.agents.cancel import Cancel
from agent_tools.agents.steps import Finished, RoundDone, Step, TextDelta
from agent_tools.agents.turn.loop import ToolLoop
from agent_tools.gateway.responses.summary_item import ASKED, split, text_of_messages
from agent_tools.gateway.responses.token_count import estimate
from agent_tools.models.base import JsonObject, Model, Usage


@dataclass
class Compactor:
    """Asks a model for the summary of a conversation. `usage` counts its tokens."""

    model: Model
    deadline: float
    usage: Usage = field(default_factory=Usage)

    def summarised(self, messages: Sequence[JsonObject], cancel: Cancel, note: Callable[[Step], object]) -> str:
        """Return the summary; '' if the model wrote none, or was interrupted. `note` gets the steps that cost tokens.

        Raises:
            ModelError: the model could not be asked.
        """
        turn, found = ToolLoop(self.model, deadline=self.deadline), []
        for step in turn.run([*messages, {"role": "user", "content": ASKED}], cancel):
            if isinstance(step, TextDelta):
                found.append(step.text)
            elif isinstance(step, RoundDone):
                self.usage += step.usage or Usage()
                note(step)
            elif isinstance(step, Finished) and step.reason != "stop":
                return ""
        return "".join(found).strip()


@dataclass(frozen=True)
class Long:
    """A conversation that is too long: the part to summarise, and the part that stays."""

    before: list[JsonObject]
    newest: list[JsonObject]

    @property
    def newest_text(self) -> str:
        """The text of the part that stays."""
        return text_of_messages(self.newest)


def too_long(messages: Sequence[JsonObject], threshold: int | None) -> Long | None:
    """Return the parts of a conversation with more tokens than a threshold, as far as they can be estimated."""
    if threshold is None or estimate(messages, ()) <= threshold:
        return None
    before, newest = split(messages)
    return Long(before, newest) if before else None
