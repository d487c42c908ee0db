"""Links to files in a text."""

from __future__ import annotations

import pytest

from agent_tools.gateway.responses.citations import MAX_ENDS, MAX_LINKS, citations


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[a](sandbox:/mnt/data/a.csv)", ["a.csv"]),
        ("See /mnt/data/a.csv.", ["a.csv"]),
        ("`sandbox:/mnt/data/sub/b c.png`", ["sub/b"]),
        ("[a](sandbox:/mnt/data/my report (1).csv) and [b](sandbox:/mnt/data/a.csv)", ["my report (1).csv", "a.csv"]),
        ("[a](<sandbox:/mnt/data/my report (1).csv>)", ["my report (1).csv"]),
        ("[a](sandbox:/mnt/data/my%20report%20%281%29.csv).", ["my report (1).csv"]),
        ('**sandbox:/mnt/data/a.csv**, _/mnt/data/a.csv_ and "/mnt/data/a.csv"', ["a.csv"] * 3),
        ("sandbox:/mnt/data/数据 表.csv", ["数据 表.csv"]),
        ("sandbox:/mnt/data/数据 表.csv。", ["数据 表.csv"]),
        ("sandbox:/mnt/data/it's [new].txt, it is", ["it's [new].txt"]),
        ("sandbox:/mnt/data/100%.txt", ["100%.txt"]),
        ("sandbox:/mnt/data/%41.txt and sandbox:/mnt/data/%42.txt", ["%41.txt", "B.txt"]),
        ("sandbox:/mnt/data/a.csv.bak", []),
        ("/mnt/data/../a.csv /mnt/data//a.csv", []),
        ("(sandbox:/mnt/data/b%20c.png)", ["b c.png"]),
        ("sandbox:/mnt/data/ and /mnt/other/a.csv", []),
    ],
)
def test_links_to_files_are_cited_where_they_stand(text: str, names: list[str]) -> None:
    known = {"a.csv", "sub/b", "b c.png", "my report (1).csv", "数据 表.csv", "it's [new].txt", "100%.txt"}
    known |= {"%41.txt", "A.txt", "B.txt"}
    found = list(citations(text, "cntr_1", lambda name: f"id of {name}" if name in known else None))
    assert [each["file_id"] for each in found] == [f"id of {name}" for name in names]
    assert [each["filename"] for each in found] == [name.rpartition("/")[2] for name in names]
    for each in found:
        assert "/mnt/data/" in text[each["start_index"] : each["end_index"]]


def test_a_text_full_of_links_is_not_looked_at_for_ever() -> None:
    asked = []
    list(citations("sandbox:/mnt/data/a.b c (d) " * 50_000, "cntr_1", lambda name: asked.append(name)))  # type: ignore[func-returns-value]
    assert 0 < len(asked) <= MAX_LINKS * MAX_ENDS
