"""Takes over into the corpus what a hunt has learnt: of all inputs, the smallest that reach what no other does."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.findings import digest
from tests.fuzz.oracle import Finding, Target, judge

MAX_BYTES = 2_048  # of an input that is kept for what it reaches; one that is kept by name may be larger
_PACKAGE = "/agent_tools/"
Step = tuple[str, int, int]
"""A file, and the lines that came one after the other in it."""


def distil(target: Target, corpus: Path, learnt: Path) -> str:
    """Copy what is worth it; says what was done. Inputs with a name of their own stay as they are."""
    named = [path for path in corpus.iterdir() if not _is_learnt(path)]
    known = {step for path in named for step in steps(target, path.read_bytes())}
    before = len(known)
    candidates = {path.read_bytes() for folder in (corpus, learnt) if folder.is_dir() for path in folder.iterdir()}
    kept: set[str] = set()
    for data in sorted(candidates, key=lambda data: (len(data), data)):
        if len(data) > MAX_BYTES or not _is_stood(target, data):
            continue
        if (new := steps(target, data)) - known:
            known |= new
            kept.add(digest(data))
            (corpus / digest(data)).write_bytes(data)
    for path in corpus.iterdir():
        if _is_learnt(path) and path.name not in kept:
            path.unlink()
    return f"{len(named)} inputs by name, {len(kept)} learnt; {before} -> {len(known)} steps of code reached"


def steps(target: Target, data: bytes) -> set[Step]:
    """The steps from line to line that an input takes in our code."""
    found: set[Step] = set()
    parts = target.unfold(data)
    before = sys.gettrace()
    sys.settrace(_tracer(found))
    try:
        with contextlib.suppress(Exception):  # the oracle is asked about those
            target.run(parts)
    finally:
        sys.settrace(before)
    return found


def _tracer(found: set[Step]) -> Callable[[FrameType, str, Any], Any]:
    def follow(frame: FrameType, _event: str, _arg: Any) -> Any:
        if _PACKAGE not in frame.f_code.co_filename:
            return None
        name, last = frame.f_code.co_filename, frame.f_lineno

        def line(frame: FrameType, _event: str, _arg: Any) -> Any:
            nonlocal last
            found.add((name, last, frame.f_lineno))
            last = frame.f_lineno
            return line

        return line

    return follow


def _is_stood(target: Target, data: bytes) -> bool:
    try:
        judge(target, data)
    except Finding:
        return False
    return True


def _is_learnt(path: Path) -> bool:
    return len(path.name) == 16 and set(path.name) <= set("0123456789abcdef")
