"""Make untrusted text safe to show on a terminal, in Markdown and in a model's context.

A person and a model have to read the same. Characters that a model reads but a person does not see are therefore shown
as Python escapes: tags, joiners, selectors, fillers and direction marks (Default_Ignorable_Code_Point of
https://www.unicode.org/Public/UCD/latest/ucd/DerivedCoreProperties.txt), the line and paragraph separators, and
interlinear annotations. Some scripts need some of them; these stay, one at a time and only in these places:

* emoji: a selector of the presentation after a symbol, ZWJ between two, a keycap's selector, and the flags of England,
  Scotland and Wales (https://www.unicode.org/reports/tr51/, emoji-zwj-sequences.txt, RGI tag sequences);
* Arabic, Syriac, N'Ko, Mongolian and the scripts of India and South-East Asia: ZWNJ between two letters, ZWJ after one
  (https://www.unicode.org/reports/tr31/, 2.3);
* Thai, Lao, Khmer, Myanmar and their neighbours: the zero width space between two letters, where lines may break
  (https://www.unicode.org/reports/tr14/, ZW);
* Chinese and Japanese: a variation selector after an ideograph (https://www.unicode.org/reports/tr37/);
* Mongolian: a variation selector or the vowel separator after a letter (StandardizedVariants.txt).

At most one such character can remain beside each visible one.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import cache

_ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\x9c|\Z)"  # OSC, DCS, SOS, PM, APC up to their end: titles, links, clipboard
    r"|\x1b[ -/]*[0-~]"  # other escapes
    r"|\x9b[0-?]*[ -/]*[@-~]",  # the one-byte CSI
    re.DOTALL,
)
MAX_ESCAPE = 64  # characters of an unfinished terminal escape that wait for their end
_UNFINISHED = re.compile(rf"\x1b(?:\[[0-?]*[ -/]*)?\Z|\x1b[\]P][^\x07\x1b]{{0,{MAX_ESCAPE}}}\Z")
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]")  # all but backspace, tab, newline, carriage return
_HIDDEN = re.compile(  # each run of characters that people do not see
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
_EMOJI = (  # and similar symbols: arrows, technical and geometric symbols, dingbats
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u24c2\u25a0-\u27bf\u2900-\u297f\u2b00-\u2bff"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
_MONGOLIAN = "\u1820-\u18aa"
_UNSPACED = (  # Thai, Lao, Tibetan, Myanmar, Khmer, Tai, Balinese, Javanese
    "\u0e01-\u0fff\u1000-\u109f\u1780-\u17b3\u17b6-\u17ff\u1950-\u19df\u1a20-\u1aad\u1b00-\u1b7f\ua980-\ua9ff\uaa60-\uaadf"
)
_JOINED = (  # Arabic, Syriac, N'Ko, Mandaic, Indic, and those before
    "\u0620-\u06ff\u0710-\u077f\u07ca-\u07ff\u0840-\u08ff\u0900-\u0dff\u1b80-\u1c7f\ua800-\ua95f\uaae0-\uabff"
    f"\ufb50-\ufdff\ufe70-\ufefc\U00010a00-\U00010a5f\U00011000-\U00011fff{_MONGOLIAN}{_UNSPACED}"
)
_IDEOGRAPH = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_FLAGS = "|".join("".join(chr(0xE0000 + ord(char)) for char in f"{name}\x7f") for name in ("gbeng", "gbsct", "gbwls"))
_BACKTICKS = re.compile(r"`+")
_MOVES = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b"})  # all characters left that move the cursor


def neutralise(text: str) -> str:
    """Remove terminal escapes and control characters, escape what a person would not see, replace lone surrogates.

    Newline, tab, carriage return and backspace stay. The result always encodes to UTF-8.
    """
    if text.isascii():
        return text if text.isprintable() else _without_controls(text)
    text = _without_controls(text.encode("utf-8", "replace").decode("utf-8"))
    return _HIDDEN.sub(_seen, text)


class SafePieces:
    """Makes a text safe that arrives in pieces, as `neutralise` does: half a terminal escape waits for the rest."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, piece: str) -> str:
        """Return what can be shown after another piece."""
        text = self._rest + piece
        half = _UNFINISHED.search(text, max(0, len(text) - MAX_ESCAPE))
        end = half.start() if half else len(text)
        self._rest = text[end:]
        return neutralise(text[:end])

    def finish(self) -> str:
        """Return the rest, at the end of the text."""
        rest, self._rest = self._rest, ""
        return neutralise(rest)


def _without_controls(text: str) -> str:
    text = _ESCAPE.sub("", text) if "\x1b" in text or "\x9b" in text else text
    return _CONTROL.sub("", text)


@cache
def _needed() -> re.Pattern[str]:
    """Matches hidden characters where a script needs them. Compiled at first use, since that takes milliseconds."""
    return re.compile(
        f"(?<=[{_EMOJI}])\ufe0f?\u200d(?=[{_EMOJI}])|(?<=[{_EMOJI}])[\ufe0e\ufe0f]|(?<=[#*0-9])\ufe0f(?=\u20e3)"
        f"|(?<=\U0001f3f4)(?:{_FLAGS})"
        f"|(?<=[{_JOINED}])\u200c(?=[{_JOINED}])|(?<=[{_JOINED}])\u200d|(?<=[{_UNSPACED}])\u200b(?=[{_UNSPACED}])"
        f"|(?<=[{_IDEOGRAPH}])[\ufe00-\ufe02\U000e0100-\U000e01ef]|(?<=[{_MONGOLIAN}])[\u180b-\u180f]"
    )


def _seen(run: re.Match[str]) -> str:
    """Return a run of hidden characters as escapes, or unchanged where a script needs it."""
    needed = _needed().match(run.string, run.start())
    if needed and needed.end() == run.end():
        return run[0]
    return run[0].encode("unicode_escape").decode("ascii")


def one_line(name: str) -> str:
    """Neutralise a text that must stay on its line, such as a file name, and escape line breaks and the like."""
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


def shorten(text: str, limit: int, missing: int = 0) -> str:
    """Keep the first and last part of a text, `limit` characters in all, with a note of how many were left out.

    `missing` more have been left out of its middle before.
    """
    if len(text) <= limit:
        return text
    head, tail = limit - limit // 2, limit // 2
    left_out = len(text) - head - tail + missing
    return f"{text[:head]}\n[... {left_out:,} characters left out ...]\n{text[len(text) - tail :]}"


def utc_text(seconds: float) -> str:
    """Return a time, in seconds since 1970, as ISO 8601 in UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
