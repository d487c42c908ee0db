"""Text forms of Markdown, formulas, HTML, JSON, SVG and styled tables, whose repr() is only their class name.

A model reads the text/plain of a MIME bundle. Programs that draw choose among the other types, which stay unchanged.
"""

import json
import re
from base64 import b64decode
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any
from urllib.parse import unquote

_EMBEDDED = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w=.-]+){0,4};base64,([A-Za-z0-9+/=%\s]{200,})")
"""A `data:` URL that is too long to be read (RFC 2397)."""
DRAWN_HTML = ("<script", "<iframe", "<svg", "<canvas")  # tags that a browser draws


def show_as_text(display_formatter: Any) -> None:
    """Register text/plain forms for the objects of FORMS."""
    plain = display_formatter.formatters["text/plain"]
    for module, name, text_of in FORMS:
        plain.for_type_by_name(module, name, partial(_write, text_of))


def _write(text_of: Callable[[Any], object], shown: Any, printer: Any, _: bool) -> None:
    """Write an object's content as text, or its repr() if there is none."""
    try:
        text = text_of(shown)
    except Exception:  # noqa: BLE001  (of a library; the object still has a repr())
        text = None
    content = text.rstrip() if isinstance(text, str) else ""
    printer.text(_EMBEDDED.sub(_as_file, content) or repr(shown))


def _as_file(found: re.Match[str]) -> str:
    """Write what a text embeds as base64 into a file, named by its content; return a note that names it."""
    mime = found[1]
    suffix = mime.partition("/")[2].partition("+")[0]
    try:
        data = b64decode(unquote(found[2]))
        name = f"embedded-{sha256(data).hexdigest()[:8]}.{suffix}"
        with open(name, "wb") as file:
            file.write(data)
    except (ValueError, OSError):
        return f"[{mime}, {len(found[2]):,} characters of base64]"
    return f"[{mime}, {len(data):,} bytes: {name}]"


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


def _video(shown: Any) -> object:
    return shown._repr_html_()


def _table(shown: Any) -> object:
    return shown.to_string(delimiter="\t")


FORMS = (
    ("IPython.core.display", "Markdown", _source),
    ("IPython.core.display", "Latex", _formula),
    ("IPython.core.display", "Math", _formula),
    ("IPython.core.display", "HTML", _html),
    ("IPython.core.display", "JSON", _json),
    ("IPython.core.display", "SVG", _svg),
    ("IPython.core.display", "Video", _video),
    ("pandas.io.formats.style", "Styler", _table),
)
"""(module, class, function from the object to its text) of objects with a text form here."""
