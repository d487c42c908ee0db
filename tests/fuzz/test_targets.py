"""Every reader of untrusted input: the corpus, what hunts found here, and structured inputs, judged by the oracle."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.assemble import Many, program
from tests.fuzz.folders import CORPUS, FOUND
from tests.fuzz.oracle import Finding, judge
from tests.fuzz.targets import NAMES, target
from tests.fuzz.unfold import repeat

INPUTS = {name: sorted((CORPUS / name).iterdir()) for name in NAMES}
GREEDY = ("many-empty-", "-named-many-times", "frame-of-", "-lies-of-", "short-lines", "never-offered")
"""Parts of the names of inputs that are small beside the memory they ask for, which is measured exactly."""


def test_every_target_has_a_corpus_and_nothing_else_has() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(NAMES)
    assert all(len(paths) >= 3 for paths in INPUTS.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_corpus_is_stood(name: str) -> None:
    reader = target(name)
    for path in [*INPUTS[name], *(FOUND / name).glob("*")]:
        try:
            judge(reader, path.read_bytes(), slowness=2.0, is_exact=any(part in path.name for part in GREEDY))
        except Finding as finding:
            finding.add_note(f"scripts/try fuzz {name} --replay {path}")
            raise


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_input_is_stood(name: str, data: st.DataObject) -> None:
    judge(target(name), data.draw(_inputs(name)), slowness=2.0)


def _inputs(name: str) -> st.SearchStrategy[bytes]:
    """Parts of the corpus, words of the target and noise in any order; where it may be, a program for any value."""
    known = [path.read_bytes() for path in INPUTS[name]]
    repeats = st.builds(repeat, st.integers(1, 16), st.integers(1, 10))
    piece = st.sampled_from(target(name).words or (b"",)) | st.binary(max_size=8) | repeats | _cut(known)
    mixed = st.lists(piece, max_size=8).map(b"".join)
    vocabulary = target(name).vocabulary
    return mixed | _programs(vocabulary) if vocabulary else mixed


def _cut(known: list[bytes]) -> st.SearchStrategy[bytes]:
    starts, ends = st.integers(0, 50), st.integers(1, 300)
    return st.builds(lambda data, start, end: data[start:end], st.sampled_from(known), starts, ends)


def _programs(words: tuple[str, ...]) -> st.SearchStrategy[bytes]:
    """Values of the words that the reader knows, some of them many times over."""
    text = st.sampled_from([word for word in words if word.isascii() and 0 < len(word) < 200])
    number = st.integers(-8, 200) | st.integers(8, 69).map(lambda bits: (1 << bits) - 1)
    leaf = st.none() | st.booleans() | number | text

    def more(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
        how = st.sampled_from(["same", "series", "keyed", "nested", "long"])
        many = st.builds(Many, inner, how, st.integers(0, 12))
        return st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=5) | many

    made = st.lists(st.recursive(leaf, more, max_leaves=12), min_size=1, max_size=4)
    return made.map(lambda values: b"P" + b"".join(map(program, values)))
