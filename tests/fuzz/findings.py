"""What a fuzzer found: one file for each place and kind, holding the smallest input that shows it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.oracle import Finding


@dataclass
class Findings:
    """Those of one target, in a folder. `counts` is how often each was met."""

    folder: Path

    def __post_init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._sizes: dict[str, int] = {}

    def add(self, finding: Finding, data: bytes) -> bool:
        """Keep a finding; whether it is new."""
        name = re.sub(r"[^\w.]+", "-", f"{finding.kind}-{finding.where}").strip("-")
        is_new = name not in self.counts
        self.counts[name] = self.counts.get(name, 0) + 1
        if is_new or len(data) < self._sizes[name]:
            self._sizes[name] = len(data)
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(data)
            (self.folder / f"{name}.txt").write_text(f"{finding}\n")
        return is_new


def digest(data: bytes) -> str:
    """What an input in a corpus is called."""
    return hashlib.sha256(data).hexdigest()[:16]
