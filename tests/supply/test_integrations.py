"""The runs of frameworks with our adapters: what they are run with, and how their reports are read."""

from __future__ import annotations

import importlib.metadata
import re

import pytest

from supply.frameworks import FRAMEWORKS
from supply.integrations import FOLDER, ROOT, Outcome, command_line, main, read_report

SHARED = {"__init__", "common", "sessions", "memory_folders"}
REPORT = b"""<testsuites><testsuite>
<testcase name="a" time="0.5"/>
<testcase name="b" time="1.5"><failure message="AssertionError: x&#10;more">trace</failure></testcase>
<testcase name="c" time="0"><error message="no fixture"/></testcase>
<testcase name="d" time="0"><skipped type="pytest.xfail" message="there is no root"/></testcase>
<testcase name="e" time="0"><skipped type="pytest.skip" message="no mkfifo"/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_counted_and_what_did_not_pass_is_named() -> None:
    outcome = read_report(REPORT, Outcome("s", "stdio"))
    assert outcome.counts == {"passed": 1, "failed": 2, "expected": 1, "skipped": 1}
    assert outcome.seconds == 2
    assert outcome.is_bad
    assert outcome.notes == [
        "failed: b: AssertionError: x",
        "failed: c: no fixture",
        "expected: d: there is no root",
        "skipped: e: no mkfifo",
    ]


@pytest.mark.parametrize("xml", [b"", b"<testsuites/>"], ids=["no report", "no test"])
def test_a_run_without_a_test_is_bad(xml: bytes) -> None:
    assert read_report(xml, Outcome("s", "sockets")).is_bad


def test_expected_exceptions_alone_are_no_failure() -> None:
    xml = b'<a><testcase name="a"/><testcase name="d"><skipped type="pytest.xfail" message="r"/></testcase></a>'
    assert not read_report(xml, Outcome("s", "sockets")).is_bad


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_framework_has_its_file_its_page_or_example_and_pins_what_it_comes_in(name: str) -> None:
    framework, file = FRAMEWORKS[name], FOLDER / f"{name.replace('-', '_')}.py"
    assert str(file) in command_line(name, "stdio", "")
    if framework.example:
        assert f'load_example("{framework.example}")' in file.read_text()
        assert (ROOT / "examples" / "frameworks" / f"{framework.example}.py").is_file()
    elif name == "claude-agents":  # a command, whose page has no Python
        assert "agent-tools worker claude" in (ROOT / "docs" / "bring-your-own-sandbox.md").read_text()
    elif framework.modules:
        assert f'run_page("{name}"' in file.read_text()
        assert (ROOT / "docs" / "integrations" / f"{name}.md").is_file()
    else:
        pages = [(ROOT / "docs" / page).read_text() for page in ("jupyter.md", "upstreams.md", "fleet.md", "skills.md")]
        assert any(name in page.lower() for page in pages)
    pinned = (*framework.packages, *framework.beside)
    assert all(re.fullmatch(r"[\w-]+==[\d.]+((post|dev)\d+)?", package) for package in pinned)


def test_every_adapter_belongs_to_a_framework_with_an_extra_of_its_name() -> None:
    modules = {path.stem for path in (ROOT / "agent_tools" / "integrations").glob("*.py")}
    assert modules - SHARED == {module for framework in FRAMEWORKS.values() for module in framework.modules}
    extras = importlib.metadata.metadata("agent-tools-sandbox").get_all("Provides-Extra") or []
    assert {name for name, framework in FRAMEWORKS.items() if framework.modules} <= set(extras)
    for name, framework in FRAMEWORKS.items():
        for module in framework.modules:
            assert f'extra("{name}")' in (ROOT / "agent_tools" / "integrations" / f"{module}.py").read_text()


def test_frameworks_are_listed_and_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in FRAMEWORKS)
    with pytest.raises(SystemExit):
        main(["unknown"])
    assert "there are langchain" in capsys.readouterr().err


def test_no_framework_is_collected_with_the_other_tests() -> None:
    assert not list(FOLDER.glob("test_*.py"))
