"""Markdown on a terminal: rendered by blocks, however it arrives."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from agent_tools.cli.markdown_writer import MAX_BLOCK, MarkdownWriter

TEXT = """# Sales

Some **bold** text and a [link](https://example.org/a).

1. First
   - nested

   and more of it
2. Second

```python
x = 1

y = "# no title"
```

| a | b |
|---|---|
| 1 | 2 |

The end."""


def written(text: str, piece: int, folder: Path = Path(), width: int = 60) -> str:
    console = Console(file=io.StringIO(), width=width)
    writer = MarkdownWriter(console, folder)
    for start in range(0, len(text), piece):
        writer.write(text[start : start + piece])
    writer.end()
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_markdown_is_rendered_however_it_is_cut(piece: int) -> None:
    shown = written(TEXT, piece)
    assert not any(mark in shown for mark in ("**", "```", "|---", "# Sales"))
    assert [line.split() for line in shown.splitlines() if " 2 Second" in line] == [["2", "Second"]]
    assert "link (https://example.org/a)" in shown
    assert 'y = "# no title"' in shown
    assert shown == written(TEXT, len(TEXT))


def test_a_block_is_shown_as_soon_as_the_next_one_begins() -> None:
    console = Console(file=io.StringIO(), width=60)
    writer = MarkdownWriter(console)
    writer.write("One.\n\nTwo")
    assert "One." not in console.file.getvalue()  # type: ignore[attr-defined]
    writer.write(".\n")
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "One." in shown
    assert "Two" not in shown


def test_a_block_that_is_too_large_is_printed_as_it_is() -> None:
    assert "**bold**" in written("**bold** " * (MAX_BLOCK // 8), 1_000)


def test_an_endless_line_costs_what_it_is_long() -> None:
    def cost(size: int) -> float:
        started = time.process_time()
        written("*" * size, 10)
        return time.process_time() - started

    assert cost(400_000) < 100 * max(cost(40_000), 0.01)


@pytest.mark.parametrize(
    "formula",
    [
        r"$e^{i\pi}_1 * a_2 * b_2$",
        r"\(a^2 + b_1 + c_1\)",
        r"\[ \int_0^1 x\,dx \]",
        r"$$\frac{1}{2}\;x$$",
    ],
)
def test_formulas_are_printed_as_the_model_wrote_them(formula: str) -> None:
    assert f"So {formula}." in written(f"So {formula}.", 5)
    assert "`x` $5 and $10, *" not in written("`` `x` `` $5 and *$10*, *it*", 5)


def test_code_with_dollars_is_no_formula() -> None:
    assert "echo $HOME_A $HOME_B" in written("Run `echo $HOME_A $HOME_B` now.", 5)
    assert "cost = '$a_b$'" in written("```python\ncost = '$a_b$'\n```", 5)
    assert "from $5 to $10" in written("from $5 to **$10**", 5)


def test_formulas_of_any_form_cost_what_they_are_long() -> None:
    def cost(size: int) -> float:
        started = time.process_time()
        for piece in ("$", "$$", "\\(", "\\[", "`", "``` ", "$a ", "$$a", "\\(a"):
            written(piece * (size // len(piece)), 1_000)
        return time.process_time() - started

    assert cost(MAX_BLOCK) < 40 * max(cost(MAX_BLOCK // 10), 0.05)


def test_a_link_to_a_file_of_the_sandbox_shows_its_path_here(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a b.csv").touch()
    (folder / "a (1).csv").touch()
    (tmp_path / "secret").touch()
    (folder / "out").symlink_to(tmp_path / "secret")
    (folder / "e\x1b[31m").touch()
    path = folder / "a b.csv"
    for place in ("/mnt/data/", "/workspace/", ""):
        for name in ("a%20b.csv", "a b.csv"):
            assert f"csv ({path})" in written(f"[csv](sandbox:{place}{name})", 7, folder, 500), place
    assert f"({folder / 'a (1).csv'})" in written("[csv](sandbox:/mnt/data/a (1).csv)", 7, folder, 500)
    assert "\x1b" not in written("[e](sandbox:/mnt/data/e%1B%5B31m)", 7, folder, 500)
    for other in ("/mnt/data/none.csv", "/mnt/data/../secret", "/mnt/data/out", str(tmp_path / "secret"), "/mnt/data/"):
        assert f"x (sandbox:{other})" in written(f"[x](sandbox:{other})", 7, folder, 500), other
    assert "`sandbox:" not in written("`[x](sandbox:/mnt/data/a%20b.csv)`", 7, folder, 500)
    assert "[x](sandbox:/mnt/data/a%20b.csv)" in written("`[x](sandbox:/mnt/data/a%20b.csv)`", 7, folder, 500)
