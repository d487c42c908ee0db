"""The folders of inputs: one in git, and those that hunts in this checkout fill. Each has a folder for each target."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
LEARNT = ROOT / ".fuzz" / "learnt"  # reach code that no other input does: the next hunt begins with them
FOUND = ROOT / ".fuzz" / "found"  # are not stood: the tests replay them until they are removed
