"""Making a conversation shorter before its model is asked, when it has more tokens than its client allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agent_tools.agents.cancel import Cancel
from agent_tools.agents.steps import Finished, RoundDone, Step, TextDelta
from agent_tools.agents.turn.loop import Turn
from agent_tools.gateway.responses.compaction.count import estimate
from agent_tools.gateway.responses.compaction.summary import ASKED, split, text_of_messages
from agent_tools.models.base import JsonObject, Model, Usage


@dataclass
class Compactor:
    """Asks a model for the summary of a conversation. `usage` is what that cost."""

    model: Model
    deadline: float
    usage: Usage = field(default_factory=Usage)

    def summarised(self, messages: Sequence[JsonObject], cancel: Cancel, note: Callable[[Step], object]) -> str:
        """Return the summary; '' if the model wrote none, or was interrupted. `note` is told of what costs tokens.

        Raises:
            ModelError: the model could not be asked.
        """
        turn, found = Turn(self.model, deadline=self.deadline), []
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
    """A conversation that is to become shorter: what is summarised, and what stays."""

    before: list[JsonObject]
    newest: list[JsonObject]

    @property
    def newest_text(self) -> str:
        """The text of what stays."""
        return text_of_messages(self.newest)


def too_long(messages: Sequence[JsonObject], threshold: int | None) -> Long | None:
    """Return the parts of a conversation with more tokens than a threshold, as far as they can be estimated."""
    if threshold is None or estimate(messages, ()) <= threshold:
        return None
    before, newest = split(messages)
    return Long(before, newest) if before else None
