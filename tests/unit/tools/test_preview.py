"""The preview of a file's content that a model is given."""

from __future__ import annotations

import io
import json
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from agent_tools.limits import MIB
from agent_tools.tools.file_preview import MAX_CHARS, MAX_COLUMNS, MAX_PARTS, MAX_READ_BYTES, preview


def shown(data: bytes | str, name: str, size: int | None = None) -> str:
    data = data.encode() if isinstance(data, str) else data
    return preview(io.BytesIO(data), name, len(data) if size is None else size)


TABLE = "id,price,day,ok,note\n1,2.5,2024-01-31,true,a|b\n2,3,2024-02-01,false,\n3,NA,2024-02-02,true,c\n"


def test_a_table_has_columns_with_types_missing_values_and_examples() -> None:
    told = shown(TABLE, "t.csv")
    assert told.startswith("t.csv: 92 bytes.\n\n3 rows, 5 columns.")
    for line in (
        "| id | integer | 0 | 1 |",
        "| price | number | 1 | 2.5 |",
        "| day | date | 0 | 2024-01-31 |",
        "| ok | boolean | 0 | true |",
        "| note | text | 1 | a\\|b |",
    ):
        assert line in told
    assert "1,2.5,2024-01-31,true,a|b" in told


@pytest.mark.parametrize(
    ("text", "name"),
    [("a;b\n1;x\n", "t.csv"), ("a\tb\n1\tx\n", "t.tsv"), ("a|b\n1|x\n", "t.csv"), ("\ufeffa,b\r\n1,x\r\n", "t.CSV")],
)
def test_tables_of_all_dialects(text: str, name: str) -> None:
    told = shown(text, name)
    assert "1 rows, 2 columns" in told
    assert "| a | integer | 0 | 1 |\n| b | text | 0 | x |" in told


def test_quoted_line_ends_are_no_rows() -> None:
    assert "2 rows, 1 columns" in shown('a\n"x\ny"\nz\n', "t.csv")


def test_uneven_rows_are_told() -> None:
    assert "1 rows have not as many fields as the header" in shown("a,b\n1,2\n3\n", "t.csv")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('[{"x": 1, "y": [2]}, {"x": 2.5, "z": null}]', "t.json"),
        ('{"x": 1, "y": [2]}\n{"x": 2.5, "z": null}\n', "t.jsonl"),
    ],
)
def test_records_are_a_table(text: str, name: str) -> None:
    told = shown(text, name)
    assert "2 rows, 3 columns" in told
    for line in ("| x | number | 0 | 1 |", "| y | list | 1 | [2] |", "| z | empty | 2 |  |"):
        assert line in told


def test_an_object_has_keys() -> None:
    assert "An object of 2 keys." in shown('{"a": {"b": 1}, "c": "d"}', "t.json")


def test_other_text_shows_its_beginning() -> None:
    assert "3 lines. The first:\n\n```\nhello\nthere\n" in shown("hello\nthere\n", "notes.txt")


@pytest.mark.parametrize("name", ["t.json", "t.jsonl"])
def test_text_that_is_not_what_its_name_says(name: str) -> None:
    assert f"It does not read as {name[2:]}. Its beginning:" in shown("{nonsense", name)


@pytest.mark.parametrize("data", [b"PK\x03\x04\x00\x00", b"\x89PNG\r\n\x1a\n\0\0\0"])
def test_what_is_not_text_is_said_to_have_no_preview(data: bytes) -> None:
    assert "not text, so there is no preview" in shown(data, "book.xlsx")


@pytest.mark.parametrize("encoding", ["utf-8", "gb18030", "utf-16"])
def test_encodings_are_recognised(encoding: str) -> None:
    assert "| 城市 | text | 0 | 北京 |" in shown("城市,数\n北京,1\n".encode(encoding), "t.csv")


def test_only_the_beginning_of_a_large_file_is_looked_at() -> None:
    told = shown(TABLE, "t.csv", size=10**9)
    assert "Only its first 92 bytes were looked at." in told
    assert "More than 3 rows" in told


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (",".join(f"c{n}" for n in range(5_000)) + "\n" + ",".join("1" * 5_000), "t.csv"),
        ("a\n" + "x" * 100_000, "t.csv"),
        ("a\n" + "x" * 200_000, "t.csv"),
        (json.dumps({"k" * 10_000: "v" * 10_000}), "t.json"),
        ("x" * 100_000, "t.txt"),
        ("[" * 100_000, "t.json"),
    ],
    ids=["wide", "long cell", "longer than csv reads", "long key", "long line", "deep"],
)
def test_whatever_the_file_the_preview_is_short(data: str, name: str) -> None:
    told = shown(data, name)
    assert len(told) < MAX_CHARS + 500


def test_columns_above_their_number_are_counted() -> None:
    wide = ",".join(f"c{n}" for n in range(MAX_COLUMNS + 7))
    assert "7 more columns." in shown(f"{wide}\n", "t.csv")


def test_escapes_and_fences_in_a_file_are_harmless() -> None:
    told = shown("a,b\n```,\x1b[31mred\n", "t.csv")
    assert "\x1b" not in told
    assert "````\na,b" in told


def test_no_more_parts_are_made_of_a_table_than_allowed() -> None:
    rows = MAX_PARTS // 2
    told = shown("a,b\n" + "1,2\n" * (rows + 10_000), "t.csv")
    assert "Only its first" in told
    assert f"More than {rows - 1:,} rows, 2 columns." in told
    assert f"{rows:,} rows, 1 columns" in shown("a\n" + "1\n" * rows, "t.csv").replace("More than ", "")


def test_records_that_are_too_many_are_shown_as_far_as_they_were_read() -> None:
    count = MAX_PARTS // 2
    told = shown("[" + '{"a": 12},' * count + '{"b": 1}]', "t.json")
    assert "Only its first" in told
    assert "| a | integer | 0 | 12 |" in told
    assert "| b |" not in told


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('[1, 2, {"a": 1}, 44', id="a number may have been cut"),
        pytest.param('[1, 2, {"a": 1}, {"a', id="an object was cut"),
        pytest.param('[1, 2, {"a": 1},', id="at a comma"),
    ],
)
def test_of_a_list_that_breaks_off_the_whole_values_are_shown(text: str) -> None:
    assert "More than 3 values" in shown(text, "t.json", size=10**9)


def test_an_object_that_breaks_off_shows_its_beginning() -> None:
    told = shown('{"a": 1, "b": ', "t.json", size=10**9)
    assert "does not read as json, as far as it was looked at" in told
    assert '{"a": 1, "b": ' in told


def test_a_value_far_down_is_not_indented_beyond_what_is_shown() -> None:
    deep = "[" * 400 + "0," * 100_000 + "0" + "]" * 400
    start = time.process_time()
    assert "1 values" in shown(deep, "t.json")
    assert time.process_time() - start < 2


BOMBS: dict[str, Callable[[], bytes]] = {
    "lists.json": lambda: b"[" + b"[]," * (5 * MIB) + b"[]]",
    "objects.json": lambda: b"[" + b"{}," * (5 * MIB) + b"{}]",
    "deep.json": lambda: b"[" * 1_000_000,
    "digits.json": lambda: b'{"a":' + b"9" * 100_000 + b"}",
    "keys.json": lambda: b'[{"' + b"a" * (12 * MIB) + b'": 1}]',
    "lines.jsonl": lambda: b"{}\n" * (5 * MIB),
    "returns.jsonl": lambda: b"\r" * (16 * MIB),
    "sparse.jsonl": lambda: json.dumps({str(n): n for n in range(60)}).encode() + b"\n{}" * (2 * MIB),
    "rows.csv": lambda: b"a\n" + b"1\n" * (8 * MIB),
    "wide.csv": lambda: b"a," * (4 * MIB) + b"a\n" + b"1," * (4 * MIB),
    "quote.csv": lambda: b'"' + b"a" * (16 * MIB),
    "quotes.csv": lambda: b"a\n" + b'"' * (16 * MIB),
    "returns.csv": lambda: b"\r" * (16 * MIB),
}


@pytest.mark.cost
@pytest.mark.parametrize("name", BOMBS)
def test_no_file_costs_more_than_a_few_times_what_is_read(name: str) -> None:
    """In a child, whose peak of memory is its own."""
    parent, child = multiprocessing.get_context("fork").Pipe()
    process = multiprocessing.get_context("fork").Process(target=_measure, args=(name, child))
    process.start()
    length, seconds, growth = parent.recv()
    process.join()
    parent.close()
    child.close()
    assert length < 2 * MAX_CHARS
    assert seconds < 6  # of CPU time; less than one where this was written
    assert growth < 12 * MAX_READ_BYTES


def _measure(name: str, child: Connection) -> None:
    content = BOMBS[name]()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before, start = _peak(), time.process_time()
    length = len(shown(content, name))
    child.send((length, time.process_time() - start, _peak() - before))


def _peak() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
