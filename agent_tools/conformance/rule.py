"""A rule: one property of a container, and how the host judges it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent_tools.conformance.facts import ContainerFacts, ProcessFacts

UNSEEN = "the host's /proc does not show it here"

Judgement = tuple["bool | None", str]
"""True if the property holds, False if not, None if that cannot be seen; and the words for what was found."""


@dataclass(frozen=True)
class Rule:
    """One property of a container, and the function that judges it."""

    category: str
    name: str
    judge: Callable[[ContainerFacts], Judgement]
    needs_root: str = ""
    """For a property that only root can set on every host, promised to no other caller: the reason and the remedy."""
    needs_docker: str = ""
    """Likewise for a property that Podman cannot set."""


def of_every_process(
    holds: Callable[[ProcessFacts], bool], show: Callable[[ProcessFacts], str]
) -> Callable[[ContainerFacts], Judgement]:
    """Return a judge of every process. It shows the first process that does not hold, or else the first of all."""

    def judge(facts: ContainerFacts) -> Judgement:
        if not facts.processes:
            return None, UNSEEN
        bad = [process for process in facts.processes if not holds(process)]
        return not bad, show((bad or facts.processes)[0])

    return judge
