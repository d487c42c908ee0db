"""A short description of a file, enough for a model to write code for it. Pure, standard library only.

Tables (csv, tsv, json, jsonl) are shown with their columns and types; other text with its first lines. A workbook, a
parquet file, an archive and anything else that is not text is only named: code in a sandbox can open those.

Files come from anywhere, and this runs on the host: time and memory are bounded by the bytes that are read and by the
parts that are made of them, not by what the file says of itself.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, BinaryIO

from agent_tools.limits import MIB
from agent_tools.text import fence, neutralise, one_line, shorten

MAX_READ_BYTES = 16 * MIB  # of a file
MAX_PARTS = 500_000  # cells of a table, or values of JSON, that are parsed
MAX_CHARS = 6_000  # of the description
MAX_COLUMNS = 60
MAX_CELL_CHARS = 40
SAMPLE_ROWS = 5
_DELIMITERS = ",;\t|"
_EMPTY = frozenset(("", "na", "n/a", "nan", "null", "none"))
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")  # with its end; of a file of one line, no copy
_JSON_LINE = re.compile(r"[^\n]+")
_MAX_BEGINNING = 20_000  # characters of a text that are looked at to show its first lines
_MARK = re.compile(r"[,;\t|\n\r\[{]")  # each can begin a part
_SPACE = re.compile(r"[ \t\n\r]*")


@dataclass
class _Column:
    """A column: the types of its values, an example, and the counts of those that are there and that are missing."""

    name: str
    present: int = 0
    missing: int = 0
    kinds: set[str] = field(default_factory=set)
    example: str = ""

    def add(self, value: Any) -> None:
        if value is None or (isinstance(value, str) and value.strip().lower() in _EMPTY):
            self.missing += 1
            return
        self.example = self.example or (value if isinstance(value, str) else _dumped(value, None))
        if len(self.kinds) < 5:
            self.kinds.add(_kind(value) if isinstance(value, str) else _json_kind(value))

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
    return f"{one_line(name)}: {size:,} bytes.{more}\n\n{shorten(shown, MAX_CHARS)}"


def _shown(data: bytes, suffix: str, is_whole: bool) -> str:
    text = _text(data, is_whole)
    if text is None:
        return "It is not text, so there is no preview. Code can open it, e.g. pandas.read_excel for a workbook."
    if suffix not in _READERS:
        return f"{text.count(chr(10)) + 1:,} lines. The first:\n\n{_beginning(text)}"
    part = _part(text)
    cut = f"Only its first {len(part):,} characters were looked at.\n\n" if len(part) < len(text) else ""
    try:
        return cut + _READERS[suffix](part, is_whole and not cut)
    except (csv.Error, ValueError, RecursionError):
        so_far = "" if is_whole and not cut else ", as far as it was looked at"
        return f"It does not read as {suffix}{so_far}. Its beginning:\n\n{_beginning(text)}"


def _part(text: str) -> str:
    """Return the beginning of a text up to `MAX_PARTS` parts, to the end of a line if it has lines."""
    last = next(islice(_MARK.finditer(text), MAX_PARTS, None), None) if len(text) > MAX_PARTS else None
    if last is None:
        return text
    part = text[: last.start()]
    return part[: part.rfind("\n") + 1] or part


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


def _beginning(text: str) -> str:
    return fence(neutralise("\n".join(line[:200] for line in text[:_MAX_BEGINNING].splitlines()[:20])))


def _csv(text: str, is_whole: bool) -> str:
    return _table(_csv_rows(text, max(_DELIMITERS, key=text.partition("\n")[0].count)), is_whole)


def _tsv(text: str, is_whole: bool) -> str:
    return _table(_csv_rows(text, "\t"), is_whole)


def _csv_rows(text: str, delimiter: str) -> Iterator[list[str]]:
    return csv.reader((line[0] for line in _LINE.finditer(text) if line[0]), delimiter=delimiter)


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


def _lines(text: str, is_whole: bool) -> str:
    end = len(text) if is_whole else text.rfind("\n") + 1
    lines = (line[0] for line in _JSON_LINE.finditer(text, 0, end))  # one at a time: each takes more than its bytes
    return _records((json.loads(line) for line in lines if line.strip()), is_whole)


def _json(text: str, is_whole: bool) -> str:
    if not is_whole:
        return _records(_elements(text), is_whole)
    value = json.loads(text)
    if isinstance(value, list):
        return _records(value, is_whole)
    shown = _beginning(_dumped(value))
    if not isinstance(value, dict):
        return shown
    keys = "\n".join(f"| {_cell(key)} | {_json_kind(each)} |" for key, each in list(value.items())[:MAX_COLUMNS])
    return f"An object of {len(value)} keys.\n\n| key | type |\n|---|---|\n{keys}\n\n{shown}"


def _elements(text: str) -> Iterator[Any]:
    """Yield the values of a list that breaks off, without the last, which may be cut."""
    decoder, at = json.JSONDecoder(), _after_space(text, 0)
    if text[at : at + 1] != "[":
        raise ValueError("no list")
    while text[at : at + 1] in ("[", ","):
        try:
            value, at = decoder.raw_decode(text, _after_space(text, at + 1))
        except ValueError:
            return
        at = _after_space(text, at)
        if text[at : at + 1] == ",":
            yield value


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _dumped(value: Any, indent: int | None = 1) -> str:
    """Return the beginning of a value as JSON; the rest is never made."""
    pieces, size = [], 0
    for piece in json.JSONEncoder(ensure_ascii=False, indent=indent).iterencode(value):
        pieces.append(piece[:_MAX_BEGINNING])
        size += len(pieces[-1])
        if size >= _MAX_BEGINNING:
            break
    return "".join(pieces)


def _records(records: Iterable[Any], is_whole: bool) -> str:
    columns: dict[str, _Column] = {}
    names: set[str] = set()
    sample: list[Any] = []
    count = odd = 0
    for record in records:
        count += 1
        if len(sample) < SAMPLE_ROWS:
            sample.append(record)
        if isinstance(record, dict):
            _add(record, columns, names)
        else:
            odd += 1
    first = _beginning(_dumped(sample))
    if odd or not count:
        return f"{'' if is_whole else 'More than '}{count:,} values. The first:\n\n{first}"
    for column in columns.values():
        column.missing += count - column.present
    return f"{_described(list(columns.values()), count, len(names), is_whole)}\n\nThe first:\n\n{first}"


def _add(record: dict[str, Any], columns: dict[str, _Column], names: set[str]) -> None:
    names.update(record)
    for name, value in record.items():
        if name not in columns and len(columns) < MAX_COLUMNS:
            columns[name] = _Column(name)
        if name in columns:
            columns[name].present += 1
            columns[name].add(value)


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
    text = neutralise(" ".join(str(text)[:_MAX_BEGINNING].split())).replace("|", "\\|")
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


_READERS: dict[str, Callable[[str, bool], str]] = {
    "csv": _csv,
    "tsv": _tsv,
    "json": _json,
    "jsonl": _lines,
    "ndjson": _lines,
}
