"""Untrusted text made safe to show: on a terminal, in Markdown, in a model's context."""

from __future__ import annotations

import re

_ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\x9c|$)"  # OSC, DCS, SOS, PM, APC up to their end: titles, links, clipboard
    r"|\x1b[ -/]*[0-~]"  # other escapes
    r"|\x9b[0-?]*[ -/]*[@-~]",  # the one-byte CSI
    re.DOTALL,
)
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]")  # all but backspace, tab, newline, carriage return
_BIDI = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")  # direction marks: they reorder what is read
_BACKTICKS = re.compile(r"`+")
_MOVES = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b"})  # what neutralised text moves the cursor by


def neutralise(text: str) -> str:
    """Remove terminal escapes and control characters, escape bidirectional marks, replace lone surrogates.

    Newline, tab, carriage return and backspace stay. The result always encodes to UTF-8.
    """
    if text.isascii() and text.isprintable():
        return text
    text = text.encode("utf-8", "replace").decode("utf-8")
    text = _ESCAPE.sub("", text) if "\x1b" in text or "\x9b" in text else text
    text = _CONTROL.sub("", text)
    return _BIDI.sub(lambda mark: f"\\u{ord(mark[0]):04x}", text)


def one_line(name: str) -> str:
    """Neutralise a text that must not leave its line, such as a file's name: what moves the cursor is escaped."""
    return neutralise(name).translate(_MOVES)


def fold_lines(text: str) -> str:
    """Apply carriage returns and backspaces as a terminal would, so that a progress bar is its last state."""
    if "\r" not in text and "\b" not in text:
        return text
    return "\n".join(_fold_line(line) for line in text.replace("\r\n", "\n").split("\n"))


def _fold_line(line: str) -> str:
    shown: list[str] = []
    for part in line.split("\r"):
        cells: list[str] = []
        for char in part:
            if char == "\b":
                del cells[-1:]
            else:
                cells.append(char)
        shown[: len(cells)] = cells  # in place: a line may hold as many returns as characters
    return "".join(shown)


def fence(text: str) -> str:
    """Put text into a Markdown code fence that nothing inside it can close."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}\n{text}\n{ticks}"


def shorten(text: str, limit: int) -> str:
    """Keep the first and last part of a text, `limit` characters in all, with an exact note of what was left out."""
    if len(text) <= limit:
        return text
    head, tail = limit - limit // 2, limit // 2
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[... {left_out:,} characters left out ...]\n{text[len(text) - tail :]}"
