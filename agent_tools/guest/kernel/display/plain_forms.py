"""Text for what is shown only to eyes: Markdown, formulas, HTML, JSON, SVG and styled tables, whose repr() names just
their class.

A model reads the text/plain of a MIME bundle. Programs that draw choose among the other types, which stay as they are.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

DRAWN_HTML = ("<script", "<iframe", "<svg", "<canvas")  # what is drawn by a browser is no text


def show_as_text(display_formatter: Any) -> None:
    """Give the objects below a text/plain form of their content."""
    plain = display_formatter.formatters["text/plain"]
    for module, name, text_of in FORMS:
        plain.for_type_by_name(module, name, partial(_write, text_of))


def _write(text_of: Callable[[Any], object], shown: Any, printer: Any, _: bool) -> None:
    """Write an object's content; where it has none that is a text, its repr()."""
    try:
        text = text_of(shown)
    except Exception:  # noqa: BLE001  (whatever a library raises, the object has a repr() still)
        text = None
    content = text.rstrip() if isinstance(text, str) else ""
    printer.text(content or repr(shown))


def _source(shown: Any) -> object:
    return shown.data


def _formula(shown: Any) -> object:
    return shown._repr_latex_()


def _html(shown: Any) -> object:
    is_drawn = any(tag in shown.data.lower() for tag in DRAWN_HTML)
    return f"[HTML of {len(shown.data):,} characters, drawn by a browser]" if is_drawn else shown.data


def _json(shown: Any) -> object:
    return json.dumps(shown.data, ensure_ascii=False, default=str)


def _svg(shown: Any) -> object:
    return f"[SVG picture, {len(shown.data):,} characters of source]"


def _table(shown: Any) -> object:
    return shown.to_string(delimiter="\t")


FORMS = (
    ("IPython.core.display", "Markdown", _source),
    ("IPython.core.display", "Latex", _formula),
    ("IPython.core.display", "Math", _formula),
    ("IPython.core.display", "HTML", _html),
    ("IPython.core.display", "JSON", _json),
    ("IPython.core.display", "SVG", _svg),
    ("pandas.io.formats.style", "Styler", _table),
)
"""(module, class, function from the object to its text) of what has a text/plain form of its own here."""
