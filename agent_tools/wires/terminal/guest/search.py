"""Searches files: a line of JSON on stdin names the function, JSON on stdout answers, {"error": [status, text]} if it
cannot. `archive` writes a zip to stdout instead.

Entries, bytes and results are bounded here, time by the host. `path` is where to look, `shown` its name in answers.
"""

from __future__ import annotations

import difflib
import fnmatch
import json
import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

MAX_ENTRIES = 200_000
MAX_READ = 8 * 2**20  # bytes of a file that is searched or compared
PER_FILE, PER_PAGE = 3, 100  # lines of one file, and files, that a page of matches shows
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
        with open(path, encoding="utf-8", newline="") as source:
            return list(enumerate(split(source.read()), 1))
    except (OSError, UnicodeDecodeError):
        return []


def split(text: str) -> list[str]:
    """Return the lines of a text as grep, sed and tracebacks count them: only LF and CRLF end a line."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def need_folder(path: str) -> None:
    """Check that a folder is there."""
    if not os.path.isdir(path):
        raise Wrong(404, "Search directory not found")


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
    if not os.path.exists(path):
        raise Wrong(404, "Search path not found")
    try:
        pattern = re.compile(query if regex else re.escape(query), re.IGNORECASE if case_insensitive else 0)
    except (re.error, RecursionError, OverflowError) as exc:
        raise Wrong(400, f"Invalid regex: {exc}") from None
    rows, files = [], [path]
    if os.path.isdir(path):
        entries = [(each, os.path.basename(each)) for each, kind in walk(path) if kind == "file"]
        files = [each for each, name in entries if any(fnmatch.fnmatch(name, one) for one in include or ["*"])]
    for name in files:
        file = os.path.normpath(os.path.join(shown, os.path.relpath(name, path)))
        for number, line in lines_of(name):
            if pattern.search(line):
                rows.append({"file": file, "line": number, "content": line} if match_per_line else {"file": file})
                if len(rows) >= max_results:
                    return {"path": shown, "matches": rows, "truncated": True}
                if not match_per_line:
                    break
    return {"path": shown, "matches": rows, "truncated": False}


def glob(path: str, shown: str, pattern: str, exclude: list[str] | None, only: str, max_results: int) -> Found:
    """Search names by a pattern."""
    need_folder(path)
    found = []
    for full, kind in walk(path):
        near = os.path.relpath(full, path)
        names = (os.path.basename(full), near)
        fits = [any(fnmatch.fnmatch(name, each) for name in names) for each in (pattern, *(exclude or ()))]
        if only not in ("any", kind) or not fits[0] or any(fits[1:]) or not os.path.exists(full):
            continue
        found.append({"path": near, "type": kind, **facts(full)})
        if len(found) >= max_results:
            return {"path": shown, "matches": found, "truncated": True}
    return {"path": shown, "matches": found, "truncated": False}


def scored(path: str, query: str, hidden: bool) -> Iterator[tuple[int, str, str]]:
    """Yield each entry below a folder: how well it fits, its path within the folder, and its kind.

    0 is the name that is wanted, 3 a part of the path, 4 another path.
    """
    need_folder(path)
    wanted = query.lower()
    for full, kind in walk(path, hidden):
        near, name = os.path.relpath(full, path), os.path.basename(full).lower()
        scores = (name == wanted, name.startswith(wanted), wanted in name, wanted in near.lower(), True)
        yield scores.index(True), near, kind


def search(path: str, shown: str, query: str, limit: int, only: str, show_hidden: bool) -> Found:
    """Search names, the best first."""
    found = [
        (score, len(os.path.basename(near)), near.lower(), near, kind)
        for score, near, kind in scored(path, query.strip(), show_hidden)
        if score < 3 and only in ("any", kind) and os.path.exists(os.path.join(path, near))
    ]
    best = sorted(found)[:limit]
    return {"results": [{**row(shown, near, kind), **facts(os.path.join(path, near))} for *_, near, kind in best]}


def row(shown: str, near: str, kind: str) -> Found:
    """Return an entry as answers have it."""
    return {"path": os.path.join(shown, near), "name": os.path.basename(near), "type": kind}


def matches(path: str, shown: str, query: str, show_hidden: bool, offset: int) -> Found:
    """Search names and lines, the best first."""
    rows = []
    for score, near, kind in scored(path, query, show_hidden):
        full, inside = os.path.join(path, near), []
        for number, line in lines_of(full) if kind == "file" and not os.path.islink(full) else ():
            at = line.lower().find(query.lower())
            if at >= 0:
                column = len(line[:at].encode("utf-16-le", "surrogatepass")) // 2 + 1
                inside.append({"line": number, "column": column, "text": line[:2_000]})
                if len(inside) == PER_FILE:
                    break
        if score < 4 or inside:
            about = {"relative_path": near, "name_match": score < 4, "content_matches": inside}
            rows.append(((score, len(near), near.lower(), near), {**row(shown, near, kind), **about}))
    rows.sort(key=lambda each: each[0])
    end = offset + PER_PAGE
    return {"results": [each for _, each in rows[offset:end]], "next_offset": end if len(rows) > end else None}


def compare(paths: list[str], shown: list[str], ignore_whitespace: bool) -> Found:
    """Compare two text files."""
    a, b = map(compared, paths)
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
        for key, path in zip(("original", "revised"), shown)
    }
    return {**names, "additions": counts["added"], "deletions": counts["removed"], "hunks": hunks}


def compared(path: str) -> list[str]:
    """Return the lines of a file to compare."""
    try:
        with open(path, "rb") as source:
            return split(source.read(MAX_READ).decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise Wrong(400, f"{os.path.basename(path)} is no text") from None


def changes(a: list[str], b: list[str], tag: str, i: int, j: int, k: int, m: int) -> Iterator[Found]:
    """Yield the lines of one step from one text to the other."""
    if tag == "equal":
        for x, y in zip(range(i, j), range(k, m)):
            yield {**line("context", x + 1, y + 1, a[x]), "revisedContent": b[y]}
        return
    for x in range(i, j):
        yield line("removed", x + 1, None, a[x])
    for y in range(k, m):
        yield line("added", None, y + 1, b[y])


def line(kind: str, old: int | None, new: int | None, text: str) -> Found:
    """Return a line as answers have it. A changed line is marked whole: Open WebUI compares texts by itself."""
    segment = {"text": text, "changed": kind != "context"}
    return {"type": kind, "oldNumber": old, "newNumber": new, "content": text, "segments": [segment]}


def archive(paths: list[str]) -> None:
    """Write a zip of files and folders."""
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
    do = given.pop("do")
    if do == "archive":
        archive(**given)  # a failure of it cuts the zip off
        return
    known: tuple[Callable[..., Found], ...] = (grep, glob, search, matches, compare)
    try:
        found = {each.__name__: each for each in known}[do](**given)
    except Wrong as wrong:
        found = {"error": wrong.args}
    except OSError as exc:
        found = {"error": [403 if isinstance(exc, PermissionError) else 400, exc.strerror or str(exc)]}
    json.dump(found, sys.stdout)


main(json.loads(sys.stdin.readline()))
