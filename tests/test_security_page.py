"""No promise of SECURITY.md stands without a test, and none is held by a test that is not there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "SECURITY.md").read_text()
HELD_BY = "held by"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")
MOST_LINES = 300


def promises(page: str) -> list[tuple[str, str]]:
    """The rows of all tables whose last column says what holds them: the promise, and that last cell."""
    rows: list[tuple[str, str]] = []
    is_held = False
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            is_held = False
        elif cells[-1] == HELD_BY:
            is_held = True
        elif is_held and set("".join(cells)) != {"-"}:
            rows.append((cells[0], cells[-1]))
    return rows


@cache
def functions(path: Path) -> frozenset[str]:
    if not path.is_file():
        return frozenset()
    body = ast.parse(path.read_text()).body
    return frozenset(node.name for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def unknown(page: str) -> list[str]:
    return [f"{path}::{name}" for path, name in TEST.findall(page) if name not in functions(ROOT / path)]


def test_every_promise_names_a_test_and_nothing_else() -> None:
    assert [promise for promise, held_by in promises(PAGE) if not TEST.search(held_by)] == []
    assert [promise for promise, held_by in promises(PAGE) if TEST.sub("", held_by).strip(", ")] == []


def test_every_test_that_the_page_names_exists() -> None:
    assert unknown(PAGE) == []


def test_the_page_has_its_promises_and_keeps_short() -> None:
    assert len(promises(PAGE)) > 40
    assert PAGE.count("::test_") == len(TEST.findall(PAGE))
    assert len(PAGE.splitlines()) <= MOST_LINES


def test_what_the_page_links_to_and_the_scripts_it_names_exist() -> None:
    named = [*LINK.findall(PAGE), *re.findall(r"`(scripts/\w+)", PAGE)]
    assert len(named) > 4
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_a_promise_without_a_test_and_a_test_that_is_not_there_are_seen() -> None:
    page = "| the code | held by |\n|---|---|\n| is good | hope |\n| is held | `tests/test_rules.py::test_gone` |\n"
    assert promises(page) == [("is good", "hope"), ("is held", "`tests/test_rules.py::test_gone`")]
    assert unknown(page) == ["tests/test_rules.py::test_gone"]
    assert promises("| a | b |\n|---|---|\n| c | d |\n") == []


def test_each_promise_of_the_code_has_its_row_under_gvisor() -> None:
    """The table of docs/engines.md names them by their first words, in the order of this page."""
    table = (ROOT / "docs/engines.md").read_text().partition("| the code | under gVisor |\n|---|---|\n")[2]
    rows = [line.strip("| ").split(" | ") for line in table.partition("\n\n")[0].splitlines()]
    ours = promises(PAGE.partition("## Promises")[2].partition("\n## ")[0])
    assert len(rows) == len(ours)
    assert [row[0] for row, (promise, _) in zip(rows, ours) if not promise.startswith(row[0])] == []
    assert all(len(row) == 2 for row in rows)
