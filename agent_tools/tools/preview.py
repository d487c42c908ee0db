"""What is in a file, in short: enough for a model to write code for it. Pure, standard library only.

Tables (csv, tsv, json, jsonl) are shown with their columns and types; other text with its first lines. Of a workbook, a
parquet file, an archive or anything else that is not text it only says so: code in a sandbox can open those.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, BinaryIO

from agent_tools.settings import MIB
from agent_tools.text import fence, neutralise, shorten

MAX_READ_BYTES = 32 * MIB
"""So much of a file is looked at."""
MAX_CHARS = 6_000
MAX_COLUMNS = 60
MAX_CELL_CHARS = 40
SAMPLE_ROWS = 5
_DELIMITERS = ",;\t|"
_EMPTY = frozenset(("", "na", "n/a", "nan", "null", "none"))


@dataclass
class _Column:
    """What the values of a column have in common."""

    name: str
    missing: int = 0
    kinds: set[str] = field(default_factory=set)
    example: str = ""

    def add(self, value: Any) -> None:
        text = value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
        if text.strip().lower() in _EMPTY:
            self.missing += 1
            return
        self.example = self.example or text
        if len(self.kinds) < 5:
            self.kinds.add(_kind(text) if isinstance(value, str) else _json_kind(value))

    @property
    def kind(self) -> str:
        if self.kinds <= {"integer", "number"} and self.kinds:
            return "number" if "number" in self.kinds else "integer"
        return next(iter(self.kinds)) if len(self.kinds) == 1 else "text" if self.kinds else "empty"


def preview(file: BinaryIO, name: str, size: int) -> str:
    """Describe a file as Markdown, in at most about `MAX_CHARS` characters. `size` is in bytes."""
    data = file.read(MAX_READ_BYTES)
    is_whole = len(data) == size
    shown = _shown(data, name.rpartition(".")[2].lower(), is_whole)
    more = "" if is_whole else f" Only its first {len(data):,} bytes were looked at."
    return f"{neutralise(name)}: {size:,} bytes.{more}\n\n{shorten(shown, MAX_CHARS)}"


def _shown(data: bytes, suffix: str, is_whole: bool) -> str:
    text = _text(data, is_whole)
    if text is None:
        return "It is not text, so there is no preview. Code can open it, e.g. pandas.read_excel for a workbook."
    try:
        if suffix in ("csv", "tsv"):
            return _table(_csv_rows(text, suffix), is_whole)
        if suffix in ("jsonl", "ndjson"):
            return _records([json.loads(line) for line in _whole_lines(text, is_whole) if line.strip()], is_whole)
        if suffix == "json":
            return _json(json.loads(text))
    except (csv.Error, ValueError, RecursionError):
        return f"It does not read as {suffix}. Its beginning:\n\n{_beginning(text)}"
    return f"{text.count(chr(10)) + 1:,} lines. The first:\n\n{_beginning(text)}"


def _text(data: bytes, is_whole: bool) -> str | None:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return _decoded(data, "utf-16", is_whole)
    if b"\0" in data[:4096]:
        return None
    found = _decoded(data, "utf-8-sig", is_whole)
    return _decoded(data, "gb18030", is_whole) if found is None else found


def _decoded(data: bytes, encoding: str, is_whole: bool) -> str | None:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as exc:
        is_cut = not is_whole and exc.start > len(data) - 4  # within a character
        return data[: exc.start].decode(encoding) if is_cut else None


def _whole_lines(text: str, is_whole: bool) -> list[str]:
    lines = text.splitlines()
    return lines if is_whole else lines[:-1]


def _beginning(text: str) -> str:
    return fence(neutralise("\n".join(line[:200] for line in text[:20_000].splitlines()[:20])))


def _csv_rows(text: str, suffix: str) -> Iterator[list[str]]:
    first = text.partition("\n")[0]
    delimiter = "\t" if suffix == "tsv" else max(_DELIMITERS, key=first.count)
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)


def _table(rows: Iterator[list[str]], is_whole: bool) -> str:
    header = next(rows, [])
    columns = [_Column(name) for name in header[:MAX_COLUMNS]]
    sample: list[list[str]] = []
    count = odd = 0
    for row in rows:
        if not row:
            continue
        count += 1
        odd += len(row) != len(header)
        if len(sample) < SAMPLE_ROWS:
            sample.append(row)
        for column, value in zip(columns, row):
            column.add(value)
    uneven = f"\n\n{odd:,} rows have not as many fields as the header." if odd else ""
    return (
        f"{_described(columns, count, len(header), is_whole)}{uneven}\n\nThe first rows:\n\n{_sample(header, sample)}"
    )


def _records(records: Sequence[Any], is_whole: bool) -> str:
    if not records or not all(isinstance(record, dict) for record in records):
        first = json.dumps(records[:SAMPLE_ROWS], ensure_ascii=False, indent=1)
        return f"{len(records):,} values. The first:\n\n{_beginning(first)}"
    names = list(dict.fromkeys(str(key) for record in records for key in record))
    columns = [_Column(name) for name in names[:MAX_COLUMNS]]
    for record in records:
        for column in columns:
            column.add(record.get(column.name))
    first = json.dumps(records[:SAMPLE_ROWS], ensure_ascii=False, indent=1)
    return f"{_described(columns, len(records), len(names), is_whole)}\n\nThe first:\n\n{_beginning(first)}"


def _json(value: Any) -> str:
    if isinstance(value, list):
        return _records(value, is_whole=True)
    shown = json.dumps(value, ensure_ascii=False, indent=1)
    if not isinstance(value, dict):
        return _beginning(shown)
    keys = "\n".join(f"| {_cell(key)} | {_json_kind(each)} |" for key, each in list(value.items())[:MAX_COLUMNS])
    return f"An object of {len(value)} keys.\n\n| key | type |\n|---|---|\n{keys}\n\n{_beginning(shown)}"


def _described(columns: Iterable[_Column], rows: int, width: int, is_whole: bool) -> str:
    lines = [
        f"| {_cell(column.name)} | {column.kind} | {column.missing:,} | {_cell(column.example)} |" for column in columns
    ]
    more = f"\n\n{width - MAX_COLUMNS} more columns." if width > MAX_COLUMNS else ""
    counted = f"{'' if is_whole else 'More than '}{rows:,} rows, {width} columns."
    return f"{counted}\n\n| column | type | missing | example |\n|---|---|---|---|\n" + "\n".join(lines) + more


def _sample(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([value[:MAX_CELL_CHARS] for value in row[:MAX_COLUMNS]] for row in (header, *rows))
    return fence(neutralise(out.getvalue().rstrip("\n")))


def _cell(text: str) -> str:
    text = neutralise(" ".join(str(text).split())).replace("|", "\\|")
    return f"{text[:MAX_CELL_CHARS]} ..." if len(text) > MAX_CELL_CHARS else text


def _kind(text: str) -> str:
    text = text.strip()
    for kind, read in (("integer", int), ("number", float), ("date", datetime.fromisoformat)):
        try:
            read(text)
        except ValueError:
            continue
        return kind
    return "boolean" if text.lower() in ("true", "false") else "text"


def _json_kind(value: Any) -> str:
    kinds = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "text"), (list, "list"), (dict, "object"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "null")
