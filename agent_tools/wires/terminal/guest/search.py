"""Searches files: one JSON object as the argument names the function, one on stdout answers, {"error": [status, text]}
if it cannot. `archive` writes a zip to stdout instead.

Entries, bytes and results are bounded here, time by the host. `path` is where to look, `shown` its name in answers.
"""

from __future__ import annotations

import difflib
import fnmatch
import heapq
import json
import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

MAX_ENTRIES = 200_000
MAX_READ = 8 * 2**20  # bytes of a file that is searched or compared
PER_FILE = 3  # lines of one file that a match shows
MAX_WORDS = 4_096  # characters of a line whose words are compared
MAX_LINES = 20_000  # of a file that is compared
Found = dict[str, Any]


class Wrong(Exception):
    """A request that cannot be answered: its status and a message."""


def walk(root: str, hidden: bool = True) -> Iterator[tuple[str, str]]:
    """Yield each entry below a folder by its path and kind, in order of names; links are not followed."""
    seen = 0
    for folder, dirs, files in os.walk(root):
        dirs[:] = sorted(name for name in dirs if hidden or name[0] != ".")
        entries = [(name, "directory") for name in dirs] + [(name, "file") for name in files]
        for name, kind in sorted(entries):
            if hidden or name[0] != ".":
                seen += 1
                if seen > MAX_ENTRIES:
                    return
                yield os.path.join(folder, name), kind


def lines_of(path: str) -> list[tuple[int, str]]:
    """Return the numbered lines of a text file; a large or binary file has no lines."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > MAX_READ:
            return []
        with open(path, encoding="utf-8") as source:
            return list(enumerate(source.read().splitlines(), 1))
    except (OSError, UnicodeDecodeError):
        return []


def need(test: Callable[[str], bool], path: str, text: str) -> None:
    """Check a path."""
    if not test(path):
        raise Wrong(404, text)


def facts(path: str) -> Found:
    """Return the size and the time of a file."""
    found = os.stat(path)
    return {"size": found.st_size, "modified": found.st_mtime}


def grep(
    path: str,
    shown: str,
    query: str,
    regex: bool,
    case_insensitive: bool,
    include: list[str] | None,
    match_per_line: bool,
    max_results: int,
) -> Found:
    """Search lines."""
    need(os.path.exists, path, "Search path not found")
    try:
        pattern = re.compile(query if regex else re.escape(query), re.IGNORECASE if case_insensitive else 0)
    except (re.error, RecursionError, OverflowError) as exc:
        raise Wrong(400, f"Invalid regex: {exc}") from None
    one = os.path.isfile(path)
    found = []
    for name in [path] if one else (each for each, kind in walk(path) if kind == "file"):
        if include and not one and not any(fnmatch.fnmatch(os.path.basename(name), each) for each in include):
            continue
        file = shown if one else os.path.join(shown, os.path.relpath(name, path))
        for number, line in lines_of(name):
            if pattern.search(line):
                found.append({"file": file, "line": number, "content": line} if match_per_line else {"file": file})
                if len(found) >= max_results:
                    return {"matches": found, "truncated": True}
                if not match_per_line:
                    break
    return {"matches": found, "truncated": False}


def glob(path: str, pattern: str, exclude: list[str] | None, only: str, max_results: int) -> Found:
    """Search names by a pattern."""
    need(os.path.isdir, path, "Search directory not found")
    found = []
    for full, kind in walk(path):
        near = os.path.relpath(full, path)
        names = (os.path.basename(full), near)
        fits = [any(fnmatch.fnmatch(name, each) for name in names) for each in (pattern, *(exclude or ()))]
        if only not in ("any", kind) or not fits[0] or any(fits[1:]) or not os.path.exists(full):
            continue
        found.append({"path": near, "type": kind, **facts(full)})
        if len(found) >= max_results:
            return {"matches": found, "truncated": True}
    return {"matches": found, "truncated": False}


def rank(name: str, wanted: str) -> int:
    """Return how well a name fits, 0 the best, 3 not at all."""
    return 0 if name == wanted else 1 if name.startswith(wanted) else 2 if wanted in name else 3


def search(path: str, shown: str, query: str, limit: int, only: str, show_hidden: bool) -> Found:
    """Search names, the best first."""
    need(os.path.isdir, path, "Search directory not found")
    wanted = query.strip().lower()
    ranked = (
        (rank(name.lower(), wanted), len(name), near.lower(), near, kind)
        for full, kind in walk(path, show_hidden)
        for name, near in [(os.path.basename(full), os.path.relpath(full, path))]
        if only in ("any", kind) and wanted in name.lower() and os.path.exists(full)
    )
    return {
        "results": [
            {
                "path": os.path.join(shown, near),
                "name": os.path.basename(near),
                "type": kind,
                **facts(os.path.join(path, near)),
            }
            for *_, near, kind in heapq.nsmallest(limit, ranked)
        ]
    }


def matches(path: str, shown: str, query: str, show_hidden: bool, offset: int, limit: int) -> Found:
    """Search names and lines, the best first."""
    need(os.path.isdir, path, "Search directory not found")
    wanted, rows = query.lower(), []
    for full, kind in walk(path, show_hidden):
        near, name = os.path.relpath(full, path), os.path.basename(full)
        score = rank(name.lower(), wanted)
        if score == 3 and wanted not in near.lower():
            score = 4
        inside = []
        for number, line in lines_of(full) if kind == "file" and not os.path.islink(full) else ():
            at = line.lower().find(wanted)
            if at >= 0:
                column = len(line[:at].encode("utf-16-le", "surrogatepass")) // 2 + 1
                inside.append({"line": number, "column": column, "text": line[:2_000]})
                if len(inside) == PER_FILE:
                    break
        if score < 4 or inside:
            row = {"path": os.path.join(shown, near), "relative_path": near, "name": name, "type": kind}
            rows.append(
                (score, len(near), near.lower(), near, {**row, "name_match": score < 4, "content_matches": inside})
            )
    rows.sort(key=lambda row: row[:4])
    more = offset + limit if len(rows) > offset + limit else None
    return {"results": [row[4] for row in rows[offset : offset + limit]], "next_offset": more}


def compare(original: str, revised: str, ignore_whitespace: bool) -> Found:
    """Compare two text files."""
    for path in (original, revised):
        need(os.path.isfile, path, f"{os.path.basename(path)}: File not found.")
    a, b = compared(original), compared(revised)
    left, right = ([re.sub(r"\s+", "", text) if ignore_whitespace else text for text in lines] for lines in (a, b))
    hunks, counts = [], {"added": 0, "removed": 0, "context": 0}
    for group in difflib.SequenceMatcher(None, left, right, autojunk=False).get_grouped_opcodes(3):
        lines = [each for step in group for each in changes(a, b, *step)]
        for each in lines:
            counts[each["type"]] += 1
        i, j, k, m = group[0][1], group[-1][2], group[0][3], group[-1][4]
        header = f"@@ -{i + (j > i)},{j - i} +{k + (m > k)},{m - k} @@"
        hunks.append({"header": header, "lines": lines})
    names = {
        key: {"path": path, "name": os.path.basename(path), "notices": []}
        for key, path in (("original", original), ("revised", revised))
    }
    return {**names, "additions": counts["added"], "deletions": counts["removed"], "hunks": hunks}


def compared(path: str) -> list[str]:
    """Return the lines of a file to compare."""
    try:
        with open(path, "rb") as source:
            lines = source.read(MAX_READ).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise Wrong(400, f"{os.path.basename(path)} is no text") from None
    if len(lines) > MAX_LINES:
        raise Wrong(400, f"{os.path.basename(path)} has more than {MAX_LINES:,} lines")
    return lines


def changes(a: list[str], b: list[str], tag: str, i: int, j: int, k: int, m: int) -> Iterator[Found]:
    """Return the lines of one step from one text to the other."""
    if tag == "equal":
        for x, y in zip(range(i, j), range(k, m)):
            yield {
                **line("context", x + 1, y + 1, a[x]),
                "revisedContent": b[y],
            }
        return
    gone = [line("removed", x + 1, None, a[x]) for x in range(i, j)]
    new = [line("added", None, y + 1, b[y]) for y in range(k, m)]
    for left, right in zip(gone, new):
        left["segments"], right["segments"] = segments(left["content"], right["content"])
    yield from gone + new


def line(kind: str, old: int | None, new: int | None, text: str) -> Found:
    """Return a line as answers have it."""
    segment = {"text": text, "changed": kind != "context"}
    return {"type": kind, "oldNumber": old, "newNumber": new, "content": text, "segments": [segment]}


def segments(one: str, other: str) -> tuple[list[Found], list[Found]]:
    """Return the words of two lines, each with whether it differs."""
    if max(len(one), len(other)) > MAX_WORDS:
        return [{"text": one, "changed": False}], [{"text": other, "changed": False}]
    a, b = (re.findall(r"\w+|[^\w\s]|\s+", each) for each in (one, other))
    left, right = [], []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        left += [{"text": "".join(a[i:j]), "changed": tag != "equal"}] if i != j else []
        right += [{"text": "".join(b[k:m]), "changed": tag != "equal"}] if k != m else []
    return left, right


def archive(paths: list[str]) -> None:
    """Write a zip of files and folders."""
    for path in paths:
        need(os.path.lexists, path, f"Path not found: {path}")
    with zipfile.ZipFile(sys.stdout.buffer, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as packed:
        for path in paths:
            top = os.path.basename(os.path.abspath(path)) or "files"
            files = [path] if os.path.isfile(path) else (full for full, kind in walk(path) if kind == "file")
            for full in files:
                if os.path.isfile(full) and os.access(full, os.R_OK):
                    name = top if full == path else os.path.join(top, os.path.relpath(full, path))
                    packed.write(full, name.encode("utf-8", "replace").decode())


def main(given: Found) -> None:
    """Answer one request."""
    known: tuple[Callable[..., Any], ...] = (grep, glob, search, matches, compare, archive)
    do = {each.__name__: each for each in known}[given.pop("do")]
    try:
        found = do(**given)
    except Wrong as wrong:
        found = {"error": wrong.args}
    except OSError as exc:
        found = {"error": [403 if isinstance(exc, PermissionError) else 400, exc.strerror or str(exc)]}
    if do is not archive:
        json.dump(found, sys.stdout)
    elif found:
        sys.exit(str(found))


main(json.loads(sys.argv[1]))
