"""A rule: one property of a container, and how the host judges it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent_tools.conformance.facts import ContainerFacts, Process

UNSEEN = "the host's /proc does not show it here"

Judgement = tuple["bool | None", str]
"""True if the property holds, False if not, None if that cannot be seen; and the words for what was found."""


@dataclass(frozen=True)
class Rule:
    """One property of a container, and the function that judges it."""

    category: str
    name: str
    judge: Callable[[ContainerFacts], Judgement]
    needs_root: bool = False
    """True for a property that only a caller who is root can give a container on every host, and so is promised."""


def of_every_process(
    holds: Callable[[Process], bool], show: Callable[[Process], str]
) -> Callable[[ContainerFacts], Judgement]:
    """Return a judge of every process. It shows the first process that does not hold, or else the first of all."""

    def judge(facts: ContainerFacts) -> Judgement:
        if not facts.processes:
            return None, UNSEEN
        bad = [process for process in facts.processes if not holds(process)]
        return not bad, show((bad or facts.processes)[0])

    return judge
