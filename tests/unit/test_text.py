import re
import sys
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tools.text import SafePieces, fence, fold_lines, neutralise, one_line, shorten

NASTY = st.sampled_from(
    ["\x1b", "\x1b[", "\x1b]52;c;", "\x1bP", "\x9b", "\x07", "\x1b\\", "\x00", "\r", "\b", "\ud800", "\u202e", "`", "m"]
)
HIDDEN = st.sampled_from(
    ["\u200d", "\ufe0f", "😀", "🏴", "\U000e0067", "\u200c", "م", "漢", "\U000e0100", "\u2028", "1", "\u20e3"]
)
HOSTILE_TEXT = st.lists(NASTY | HIDDEN | st.characters(), max_size=30).map("".join)


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        pytest.param("plain text", "plain text", id="plain"),
        pytest.param("", "", id="empty"),
        pytest.param("\x1b[31mred\x1b[0m", "red", id="CSI colour"),
        pytest.param("\x1b[2J\x1b[1;1Htop", "top", id="CSI cursor"),
        pytest.param("\x1b[?25lhidden", "hidden", id="CSI private mode"),
        pytest.param("\x9b31mred", "red", id="one-byte CSI"),
        pytest.param("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link", id="OSC 8 link"),
        pytest.param("a\x1b]52;c;ZXZpbA==\x07b", "ab", id="OSC 52 clipboard"),
        pytest.param("a\x1b]0;title\x9cb", "ab", id="OSC ended by C1 ST"),
        pytest.param("a\x1b]0;never ended", "a", id="OSC without an end"),
        pytest.param("a\x1b]0;never ended\n", "a", id="OSC without an end on a line"),
        pytest.param("a\x1bP1$r0m\x1b\\b", "ab", id="DCS"),
        pytest.param("a\x1b_x\x1b\\b\x1b^y\x1b\\c\x1bXz\x1b\\d", "abcd", id="APC, PM and SOS"),
        pytest.param("a\x1bcb\x1b(Bc", "abc", id="reset and charset"),
        pytest.param("a\x1b", "a", id="lone escape at the end"),
        pytest.param("a\x00b\x07c\x0bd\x0ce\x7ff", "abcdef", id="C0 and DEL"),
        pytest.param("a\x80b\x85c\x9fd", "abcd", id="C1"),
        pytest.param("a\nb\tc\rd\be", "a\nb\tc\rd\be", id="newline, tab, return and backspace stay"),
        pytest.param("a\u202eb\u2066c\u061cd", "a\\u202eb\\u2066c\\u061cd", id="bidi marks"),
        pytest.param("a\ud800b\udfffc", "a?b?c", id="lone surrogates"),
        pytest.param("中文 é 😀", "中文 é 😀", id="other scripts stay"),
        pytest.param("hi\U000e0061\U000e007f", "hi\\U000e0061\\U000e007f", id="tags"),
        pytest.param("a\u200bb\u2060c\ufeffd", "a\\u200bb\\u2060c\\ufeffd", id="zero width"),
        pytest.param("\ufeffa,b", "\\ufeffa,b", id="byte order mark"),
        pytest.param("a\u200db\u200cc", "a\\u200db\\u200cc", id="joiners between Latin letters"),
        pytest.param("a\ufe0fb\U000e0101c", "a\\ufe0fb\\U000e0101c", id="selectors of Latin letters"),
        pytest.param("1\ufe0f2\ufe0f", "1\\ufe0f2\\ufe0f", id="selectors of digits that are no keycaps"),
        pytest.param("a\u2028b\u2029c", "a\\u2028b\\u2029c", id="line and paragraph separators"),
        pytest.param("co\u00adop\u034f", "co\\xadop\\u034f", id="soft hyphen and grapheme joiner"),
        pytest.param("\u115f\u1160\u3164\uffa0", "\\u115f\\u1160\\u3164\\uffa0", id="Hangul fillers"),
        pytest.param("x\u2062y\u2064z", "x\\u2062y\\u2064z", id="invisible mathematics"),
        pytest.param("\ufff9a\ufffab\ufffb", "\\ufff9a\\ufffab\\ufffb", id="interlinear annotation"),
        pytest.param("😀\ufe0f\ufe0e", "😀\\ufe0f\\ufe0e", id="more selectors than an emoji has"),
        pytest.param("😀\u200d a", "😀\\u200d a", id="a joiner that joins nothing"),
        pytest.param("漢\U000e0100\U000e0101", "漢\\U000e0100\\U000e0101", id="two selectors of an ideograph"),
        pytest.param("\U0001f3f4\U000e0068\U000e0069", "\U0001f3f4\\U000e0068\\U000e0069", id="words behind a flag"),
        pytest.param("می\u200c\u200cخ", "می\\u200c\\u200cخ", id="two non-joiners"),
    ],
)
def test_neutralise_leaves_only_text(given_text: str, shown: str) -> None:
    assert neutralise(given_text) == shown


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("❤\ufe0f ☎\ufe0e ↔\ufe0f ™\ufe0f ㊗\ufe0f", id="emoji and text presentation"),
        pytest.param(
            "👩🏽\u200d💻 👨\u200d👩\u200d👧 🏳\ufe0f\u200d🌈 ❤\ufe0f\u200d🔥 🏴\u200d☠\ufe0f", id="emoji sequences"
        ),
        pytest.param("1\ufe0f\u20e3 #\ufe0f\u20e3", id="keycaps"),
        pytest.param("🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f 🇨🇭", id="flags"),
        pytest.param("می\u200cخواهم", id="Persian"),
        pytest.param("۱۴۴۲ ه\u200d.ق", id="Arabic letter in its initial form"),
        pytest.param("क्\u200dष र्\u200cय", id="Devanagari"),
        pytest.param("ශ්\u200dරී", id="Sinhala"),
        pytest.param("ന്\u200d", id="Malayalam"),
        pytest.param("ภาษา\u200bไทย ភាសា\u200bខ្មែរ", id="Thai and Khmer words"),
        pytest.param("葛\U000e0100城 神\ufe00", id="variants of ideographs"),
        pytest.param("ᠠ\u180bᠨ\u180eᠠ", id="Mongolian"),
        pytest.param("a\u00a0b\u202fc\u3000d\u2800", id="blanks that are seen"),
    ],
)
def test_what_a_script_needs_stays(text: str) -> None:
    assert neutralise(text) == text


def test_no_format_character_passes_between_letters() -> None:
    seen = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD, *range(0x13430, 0x13440)}
    hidden = [
        chr(point)
        for point in range(sys.maxunicode)
        if point not in seen and unicodedata.category(chr(point)) in ("Cf", "Zl", "Zp")
    ]
    assert len(hidden) > 140
    assert [char for char in hidden if char in neutralise(f"a{char}b")] == []


@pytest.mark.cost
def test_neutralising_costs_in_proportion_to_the_text() -> None:
    def seconds(text: str) -> float:
        start = time.process_time()
        neutralise(text)
        return time.process_time() - start

    for piece in ("a\u200b", "😀\ufe0f", "\U000e0041", "漢\U000e0100\U000e0101", "\x1b[1m\u202e", "ه\u200d"):
        short = min(seconds(piece * 10_000) for _ in range(3))
        assert seconds(piece * 100_000) < 60 * short + 0.05, piece


@given(HOSTILE_TEXT)
def test_neutralised_text_encodes_and_holds_no_control_characters(text: str) -> None:
    clean = neutralise(text)
    clean.encode("utf-8")
    assert not re.search(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]", clean)
    assert not re.search("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]", clean)


@given(HOSTILE_TEXT)
def test_neutralise_is_idempotent(text: str) -> None:
    assert neutralise(neutralise(text)) == neutralise(text)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        pytest.param("report 2024.csv", "report 2024.csv", id="plain"),
        pytest.param("报告 é.csv", "报告 é.csv", id="other scripts"),
        pytest.param("a\n* b (1 bytes)", "a\\n* b (1 bytes)", id="newline"),
        pytest.param("a\r\nb\tc\bd", "a\\r\\nb\\tc\\bd", id="return, tab and backspace"),
        pytest.param("a\u2028b\u2029c", "a\\u2028b\\u2029c", id="separators of lines and paragraphs"),
        pytest.param("a\x1b[31mb\x85c\x0bd\u202ee", "abcd\\u202ee", id="all that neutralise takes"),
    ],
)
def test_a_name_stays_on_its_line(name: str, shown: str) -> None:
    assert one_line(name) == shown


@given(HOSTILE_TEXT)
def test_nothing_moves_a_name_off_its_line(name: str) -> None:
    assert len(one_line(name).splitlines()) <= 1


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        pytest.param("no returns\nat all\n", "no returns\nat all\n", id="untouched"),
        pytest.param("10%\r50%\r100%\n", "100%\n", id="progress bar"),
        pytest.param("first line\rab", "abrst line", id="a shorter line overwrites only its length"),
        pytest.param("abc\r", "abc", id="a return alone erases nothing"),
        pytest.param("a\r\nb\r\n", "a\nb\n", id="CRLF is a newline"),
        pytest.param("a\r\n10%\r20%\r\n", "a\n20%\n", id="progress bar between CRLF lines"),
        pytest.param("abc\b\bX", "aX", id="backspaces"),
        pytest.param("\b\ba", "a", id="backspace at the start of a line"),
        pytest.param("a\n\bb", "a\nb", id="backspace does not join lines"),
    ],
)
def test_fold_lines_shows_what_a_terminal_would(raw: str, shown: str) -> None:
    assert fold_lines(raw) == shown


def test_fence_is_three_backticks_around_plain_text() -> None:
    assert fence("4\n") == "```\n4\n\n```"


@pytest.mark.parametrize("inner", range(3, 11))
def test_fence_is_longer_than_any_run_of_backticks_inside(inner: int) -> None:
    text = "a\n" + "`" * inner + "\nb"
    assert fence(text) == "`" * (inner + 1) + f"\n{text}\n" + "`" * (inner + 1)


@given(st.text(alphabet="`~ \t\n\ra", max_size=60))
def test_a_fence_cannot_be_closed_from_inside(text: str) -> None:
    fenced = fence(text)
    ticks = fenced[: len(fenced) - len(fenced.lstrip("`"))]
    assert len(ticks) >= 3
    assert fenced == f"{ticks}\n{text}\n{ticks}"
    assert ticks not in text


@pytest.mark.timeout(30)
def test_a_long_line_with_as_many_returns_is_folded_in_one_pass() -> None:
    size = 200_000
    assert fold_lines("x" * size + "\r" * size + "yz") == "yz" + "x" * (size - 2)


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        pytest.param("abc", 3, "abc", id="as long as allowed"),
        pytest.param("abcdefg", 4, "ab\n[... 3 characters left out ...]\nfg", id="even limit"),
        pytest.param("abcdefg", 5, "abc\n[... 2 characters left out ...]\nfg", id="odd limit"),
        pytest.param("abc", 1, "a\n[... 2 characters left out ...]\n", id="one character"),
        pytest.param("abc", 0, "\n[... 3 characters left out ...]\n", id="nothing kept"),
        pytest.param("a" * 5002, 2, "a\n[... 5,000 characters left out ...]\na", id="thousands separated"),
    ],
)
def test_shorten_keeps_both_ends_around_a_note(text: str, limit: int, shown: str) -> None:
    assert shorten(text, limit) == shown


@given(st.text(alphabet="abc", max_size=3000), st.integers(0, 2000))
def test_shorten_keeps_exactly_the_limit_and_states_the_exact_count(text: str, limit: int) -> None:
    shown = shorten(text, limit)
    if len(text) <= limit:
        assert shown == text
        return
    head, count, tail = re.split(r"\n\[\.\.\. ([\d,]+) characters left out \.\.\.\]\n", shown)
    assert len(head) + len(tail) == limit
    assert int(count.replace(",", "")) == len(text) - limit
    assert text.startswith(head)
    assert text.endswith(tail)


@pytest.mark.parametrize("cut", range(1, 16))
def test_an_escape_that_is_cut_is_removed_all_the_same(cut: int) -> None:
    text = "a\x1b[2Jb\x1b]0;t\x07c\x1b"
    pieces = SafePieces()
    shown = [pieces.feed(text[:cut]), pieces.feed(text[cut:]), pieces.finish()]
    assert "".join(shown) == "abc"
