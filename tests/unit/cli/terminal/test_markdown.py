"""Markdown on a terminal: rendered by blocks, however it arrives."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from agent_tools.cli.chat import MAX_BLOCK, MarkdownWriter

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


def written(text: str, piece: int) -> str:
    console = Console(file=io.StringIO(), width=60)
    writer = MarkdownWriter(console)
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
