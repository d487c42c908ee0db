"""Outputs of code as JSON that pages show: text, checked pictures as URLs, data of figures; never markup. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from agent_tools.results.outputs import (
    Cleared,
    Died,
    Display,
    Error,
    MimeBundle,
    Output,
    Result,
    Stream,
    TimedOut,
    pictures_of,
)

MAX_TITLE = 200  # characters
_FIGURE = re.compile(r"application/vnd\.(plotly|vega|vegalite)\.v\d{1,2}[+.]json")  # Altair 6 writes a dot


def figure_of(data: MimeBundle) -> dict[str, Any] | None:
    """Return the first figure of a display that a browser can draw, as `{"kind": "plotly", "data": {...}}`."""
    found = next(((match[1], data[mime]) for mime in data if (match := _FIGURE.fullmatch(mime))), None)
    return {"kind": found[0], "data": found[1]} if found and isinstance(found[1], dict) else None


def live_outputs(output: Output) -> Iterator[dict[str, Any]]:
    """Yield an output as the page shows it while code runs."""
    match output:
        case Stream(name, text):
            yield {"kind": name, "text": text}
        case Result() | Display():
            urls = [picture.data_url for picture in pictures_of(output)]
            if figure := figure_of(output.data):
                yield {"kind": "figure", "figure": figure, "url": next(iter(urls), None), "text": output.text}
            elif urls:
                yield from ({"kind": "image", "url": url} for url in urls)
            elif output.text:
                yield {"kind": "result", "text": output.text}
        case Cleared(wait):
            yield {"kind": "cleared", "wait": wait}
        case Error(name, value):
            yield {"kind": "error", "title": f"{name}: {value}".rstrip(": ")[:MAX_TITLE], "text": output.text}
        case TimedOut() | Died():
            yield {"kind": "error", "title": ending_of(output), "text": output.text}
        case _:
            yield {"kind": "note", "text": output.text}


def ending_of(output: Error | TimedOut | Died) -> str:
    """Return a few words for what ended the code."""
    match output:
        case TimedOut():
            return "Time limit reached"
        case Died():
            return "The kernel died"
    return output.name[:MAX_TITLE]
