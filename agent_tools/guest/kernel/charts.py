"""Charts of plotly and Altair: a picture for a model, and the chart's data for programs that draw it.

Both libraries choose a renderer by name; most renderers need a browser, a network or a notebook's page. Here every
such name stands for one renderer: the library's MIME type and, where the library can draw without a browser (plotly
with kaleido, Altair with vl-convert), a PNG. Of a chart of plotly without kaleido a page is written that draws it.
"""

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

PLOTLY_TYPE = "application/vnd.plotly.v1+json"
PLOTLY_AS_ASKED = ("jpeg", "jpg", "json", "png", "sphinx_gallery", "sphinx_gallery_png")
ALTAIR_AS_ASKED = ("json", "png")
NOT_DRAWN = "[A chart of {} without a picture: {}. Its data are in the output {}.]"
AS_PAGE = (
    "[A chart of plotly, which the page {} draws in a browser; the flavour `full` shows a picture, too. Its data are "
    "in the output {}.]"
)
MAX_REASON = 300  # characters of what a library says
MAX_PAGES = 20  # in a session, of 5 MB each: plotly's script is in each, so that it can be sent on by itself


def adapt_plotly(renderers: Any) -> None:
    """Adapt `plotly.io._renderers`, which has just been imported."""
    base = renderers.MimetypeRenderer

    class ChartPicture(base):  # type: ignore[misc, valid-type]
        """The chart as PNG and as plotly's own type. Size and scale may come with `show()`."""

        def __init__(self, width: Any = None, height: Any = None, scale: Any = None) -> None:
            self.width, self.height, self.scale = width, height, scale

        def to_mimebundle(self, fig_dict: Any) -> Any:
            """Return the bundle."""
            plain = renderers.PlotlyRenderer().to_mimebundle(fig_dict)
            png = renderers.PngRenderer(width=self.width, height=self.height, scale=self.scale)
            bundle = _with_picture(plain, lambda: png.to_mimebundle(fig_dict), "plotly", PLOTLY_TYPE)
            if "image/png" not in bundle and (page := _written_page(fig_dict)):
                bundle["text/plain"] = AS_PAGE.format(page, PLOTLY_TYPE)
            return bundle

    for name in list(renderers.renderers):
        if name not in PLOTLY_AS_ASKED:
            renderers.renderers[name] = ChartPicture()
    renderers.renderers.default = "plotly_mimetype"
    renderers.renderers.render_on_display = True
    if not renderers.nbformat:  # plotly asks for its version alone, of all who show a MIME bundle
        renderers.nbformat = SimpleNamespace(__version__="5.0")


def _written_page(fig_dict: Any) -> str:
    """Write a chart into the current folder as a page of its own; return the file's name, '' if it cannot be."""
    names = (f"plotly_{number}.html" for number in range(1, MAX_PAGES + 1))
    if not (name := next((name for name in names if not os.path.lexists(name)), "")):
        return ""
    try:
        page = sys.modules["plotly.io"].to_html(fig_dict, validate=False)
        with open(name, "x", encoding="utf-8") as file:
            file.write(page)
    except Exception:  # noqa: BLE001  (whatever plotly raises, or a full disk: the chart's data are there)
        return ""
    return name


def adapt_altair(display: Any) -> None:
    """Adapt Altair's module of renderers for its version of Vega-Lite, which has just been imported."""
    mime_type = display.VEGALITE_MIME_TYPE

    def picture(spec: Any, **_: Any) -> Any:
        return _with_picture({mime_type: spec}, lambda: display.png_renderer(spec)[0], "Altair", mime_type)

    for name in display.renderers.names():
        if name not in ALTAIR_AS_ASKED:
            display.renderers.register(name, picture)
    display.renderers.enable("default")


def _with_picture(plain: dict[str, Any], draw: Callable[[], dict[str, Any]], library: str, mime_type: str) -> Any:
    """Return a bundle with what `draw` adds to it; with a sentence if the library cannot draw here."""
    try:
        return {**plain, **draw()}
    except Exception as exc:  # noqa: BLE001  (whatever the library's renderer raises: the chart's data are there)
        reason = " ".join(str(exc).split())[:MAX_REASON] or type(exc).__name__
        return {**plain, "text/plain": NOT_DRAWN.format(library, reason, mime_type)}
