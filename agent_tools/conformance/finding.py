"""One checked property of a container, and the count of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agent_tools.text import neutralise

Verdict = Literal["held", "open", "unknown", "info"]
VERDICTS: tuple[Verdict, ...] = ("held", "open", "unknown", "info")

EXPOSURE = "information exposure"
FILES = "file system"
NETWORK = "network"
PRIVILEGES = "privileges and dangerous operations"
LIMITS = "resource limits"
CATEGORIES = (EXPOSURE, FILES, NETWORK, PRIVILEGES, LIMITS)
MOST_CHARS = 120  # of what was found


@dataclass(frozen=True)
class Finding:
    """The verdict on one property, and its reason. `info` is a fact without a promise."""

    category: str
    name: str
    verdict: Verdict
    found: str
    seen_by: Literal["host", "code"]
    """`code` ran in the container, and may lie about all it says."""
    is_promised: bool = True
    """True if our sandbox promises it with its default options."""

    @property
    def breaks_a_promise(self) -> bool:
        """True if the default sandbox would break its word with such a finding."""
        return self.is_promised and self.verdict == "open"


def counts(findings: Sequence[Finding]) -> dict[Verdict, int]:
    """Return the count of each verdict."""
    found = Counter(finding.verdict for finding in findings)
    return {verdict: found[verdict] for verdict in VERDICTS}


def one_line(text: str) -> str:
    """Return a container's text, made safe to show in one cell of a table."""
    words = " ".join(neutralise(text[: 4 * MOST_CHARS]).split())
    return words if len(words) <= MOST_CHARS else f"{words[: MOST_CHARS - 1]}…"
