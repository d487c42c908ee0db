from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from IPython.core.display import HTML, JSON, SVG, Javascript, Latex, Markdown, Math, Video
from IPython.core.formatters import DisplayFormatter

from agent_tools.guest.kernel.plain_forms import DRAWN_HTML, show_as_text


class Named(Markdown):
    def __repr__(self) -> str:
        return "Named()"


def _plain(shown: Any) -> tuple[str, set[str]]:
    """Return the text/plain of an object, and its other types."""
    formatter = DisplayFormatter()
    show_as_text(formatter)
    bundle = formatter.format(shown)[0]
    return bundle.pop("text/plain"), set(bundle)


@pytest.mark.parametrize(
    ("shown", "text", "mime"),
    [
        (Markdown("# x\n\n* y\n"), "# x\n\n* y", "text/markdown"),
        (HTML("<b>x</b>"), "<b>x</b>", "text/html"),
        (Latex("$x$"), "$x$", "text/latex"),
        (Math("x"), r"$\displaystyle x$", "text/latex"),
        (JSON({"a": [1, "é", None]}), '{"a": [1, "é", null]}', "application/json"),
        (JSON([float("nan")]), "[NaN]", "application/json"),
        (SVG("<svg></svg>"), "[SVG picture, 6 characters of source]", "image/svg+xml"),
    ],
)
def test_what_is_shown_has_a_text_and_stays_what_it_is(shown: Any, text: str, mime: str) -> None:
    assert _plain(shown) == (text, {mime})


@pytest.mark.parametrize("shown", [HTML(f"<p>x</p>{tag.upper()} ...") for tag in DRAWN_HTML])
def test_drawn_html_is_told_by_its_size(shown: Any) -> None:
    assert _plain(shown)[0] == f"[HTML of {len(shown.data)} characters, drawn by a browser]"


@pytest.mark.parametrize("shown", [Javascript("x"), HTML("")])
def test_scripts_and_empty_html_are_only_named(shown: Any) -> None:
    assert _plain(shown)[0] == repr(shown)


def test_an_object_without_content_of_its_kind_is_named() -> None:
    shown = Markdown("x")
    shown.data = None
    assert _plain(shown)[0] == repr(shown)


@pytest.mark.filterwarnings("ignore:text/html formatter returned")
def test_an_object_that_fails_is_named() -> None:
    shown = HTML("x")
    shown.data = b"x"
    assert _plain(shown)[0] == repr(shown)


def test_a_class_with_a_repr_of_its_own_keeps_it() -> None:
    assert _plain(Named("x"))[0] == "Named()"


VIDEO = bytes(range(256)) * 40
VIDEO_URL = f"data:video/mp4;base64,{b64encode(VIDEO).decode()}"


@pytest.mark.parametrize(
    "shown",
    [
        HTML(f'<video controls><source src="{VIDEO_URL}"></video>'),
        Markdown(f"![it]({VIDEO_URL})"),
        Video(VIDEO, embed=True, mimetype="video/mp4"),
    ],
    ids=lambda shown: type(shown).__name__,
)
def test_what_a_text_embeds_is_a_file(shown: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = _plain(shown)[0]
    (file,) = tmp_path.iterdir()
    assert file.read_bytes() == VIDEO
    assert f"[video/mp4, 10,240 bytes: {file.name}]" in text
    assert len(text) < 300


def test_what_a_text_embeds_is_counted_where_no_file_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert _plain(Markdown(VIDEO_URL))[0] == f"[video/mp4, {len(VIDEO_URL) - 22:,} characters of base64]"
    assert _plain(Markdown("data:image/png;base64,AAAA"))[0] == "data:image/png;base64,AAAA"
