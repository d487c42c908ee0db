"""Folders of inputs for each target: the corpus in git, and those that a hunt in this checkout fills."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
LEARNT = ROOT / ".fuzz" / "learnt"  # reach code that no other input does: the next hunt begins with them
FOUND = ROOT / ".fuzz" / "found"  # are not stood: the tests replay them until they are removed
