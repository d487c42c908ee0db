import ast
import json
from pathlib import Path
from typing import Any

import pytest

from agent_tools.conformance import facts
from agent_tools.conformance.findings import (
    CATALOGUE,
    CATEGORIES,
    MOST_BYTES,
    UNPROMISED,
    Finding,
    claimed_findings,
    counts,
    program,
)
from agent_tools.conformance.guest.main import CHECKS

NAMES = [name for names in CATALOGUE.values() for name in names]
GUEST = sorted((Path(facts.__file__).parent / "guest").glob("*.py"))


def said(**answers: Any) -> bytes:
    return json.dumps({"answers": answers}).encode()


def finding_of(name: str, answer: Any) -> Finding:
    return list(claimed_findings(said(**{name: answer})))[NAMES.index(name)]


def test_the_catalogue_names_exactly_what_the_guest_checks() -> None:
    assert set(NAMES) == set(CHECKS)
    assert set(CATALOGUE) == set(CATEGORIES)
    assert len(NAMES) == len(set(NAMES)) == 65
    assert set(NAMES) >= UNPROMISED


@pytest.mark.parametrize("path", GUEST, ids=lambda path: path.stem)
def test_the_guest_is_python_3_8_and_plain_ascii(path: Path) -> None:
    text = path.read_bytes().decode("ascii")
    ast.parse(text, feature_version=(3, 8))


def test_the_program_holds_every_module_of_the_guest() -> None:
    compile(program(), "probe", "exec")
    sources = json.loads(program().split(" in ", 1)[1].split(".items():\n", 1)[0])
    assert {f"agent_tools.conformance.guest.{path.stem}" for path in GUEST} - {
        "agent_tools.conformance.guest.__init__"
    } == set(sources) - {"agent_tools.conformance.guest"}


@pytest.mark.parametrize("verdict", ["held", "open", "unknown"])
def test_a_claim_is_taken_as_it_is(verdict: str) -> None:
    finding = finding_of("mount", [verdict, "refused (EPERM)"])
    assert (finding.verdict, finding.found, finding.seen_by) == (verdict, "refused (EPERM)", "code")
    assert finding.breaks_a_promise == (verdict == "open")


def test_what_is_only_told_breaks_no_promise() -> None:
    finding = finding_of("host_paths", ["info", "mountinfo names /srv/work"])
    assert (finding.verdict, finding.is_promised) == ("info", False)


def test_a_promise_cannot_be_made_mere_information() -> None:
    assert finding_of("mount", ["info", "nothing to see"]).verdict == "unknown"


HOSTILE = {
    "nothing": b"",
    "not JSON": b"Traceback (most recent call last): ...",
    "not UTF-8": b"\xff\xfe\x00",
    "deeply nested": b"[" * 60_000,
    "a list": b"[1, 2]",
    "a number": b"7",
    "a huge number": b"1" * 50_000,
    "answers that are a list": b'{"answers": []}',
    "answers that are null": b'{"answers": null}',
    "too much": b'{"answers": {"mount": ["held", "x"]}}'.ljust(MOST_BYTES + 1),
    "names we do not know": said(nonsense=["held", "x"], __class__=["held", "x"]),
}


@pytest.mark.parametrize("spoken", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_makes_no_sense_leaves_all_unknown(spoken: bytes) -> None:
    findings = list(claimed_findings(spoken))
    assert counts(findings) == {"held": 0, "open": 0, "unknown": len(NAMES), "info": 0}


@pytest.mark.parametrize(
    "answer",
    [None, 1, "held", [], ["held"], ["held", 1], ["held", "x", "y"], ["fine", "x"], [["held"], "x"], {"held": "x"}],
    ids=repr,
)
def test_an_answer_of_the_wrong_form_is_unknown(answer: Any) -> None:
    assert finding_of("mount", answer).verdict == "unknown"


def test_words_are_made_harmless_and_short() -> None:
    finding = finding_of("mount", ["held", "\x1b]0;title\x07a\nb\u202e\ud800" + "x" * 100_000])
    assert finding.verdict == "unknown"  # more than is taken at all
    found = finding_of("mount", ["held", "\x1b]0;title\x07a\nb\u202e\ud800" + "x" * 10_000]).found
    assert found.startswith("a b\\u202e")
    assert len(found) == 120
    found.encode()


def test_a_container_that_was_not_asked_is_unknown_with_the_reason() -> None:
    findings = list(claimed_findings(None, "not asked: the container has no Python on its PATH"))
    assert {(finding.verdict, finding.found) for finding in findings} == {
        ("unknown", "not asked: the container has no Python on its PATH")
    }
