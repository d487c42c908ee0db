"""Figures: PNG or JPEG in the answer, whatever backend or format a cell asks for."""

import sys
from binascii import b2a_base64
from collections.abc import Callable
from functools import partial
from typing import Any

from IPython.core.formatters import PDFFormatter, PNGFormatter, SVGFormatter

from ..magics import say

INLINE = (None, "auto", "inline", "module://matplotlib_inline.backend_inline")
FILES_ONLY = ("agg", "cairo", "pdf", "pgf", "ps", "svg", "template")
NO_SCREEN = "%matplotlib {}: there is no window or widget to draw in; figures are shown as pictures, as with inline."
NOT_SHOWN = "%matplotlib {}: figures are no longer shown, only saved by savefig, until `%matplotlib inline`."
SHOWN_AS_PNG = "Figures are shown as PNG here, not as {}; savefig writes files of any format."
KNOWN = {"fmt": "png", "bbox_inches": "tight", "base64": None}  # options of the stock way, and the values meant here
NO_LOOP = "%gui {}: there is no screen here, so no event loop of a window system runs."


def backend_for(asked: str | None) -> str | None:
    """The backend that stands for one that was asked for; says what becomes of figures, unless they are shown."""
    name = asked.lower() if asked else None
    if name in INLINE:
        return name
    if name in FILES_ONLY:
        say(NOT_SHOWN.format(name))
        return name
    say(NO_SCREEN.format(asked))
    return "inline"


def show_as_png(display_formatter: Any) -> None:
    """Have figures drawn once, and shown as PNG where SVG or PDF is chosen, of which the reader would see nothing."""
    for formatter in (Png, NoSvg, NoPdf):
        display_formatter.formatters[formatter.format_type.default_value] = formatter(parent=display_formatter)


def show_as_asked(display_formatter: Any) -> None:
    """Have figures shown in whatever format is chosen: there is somebody to see them."""
    for formatter in (SVGFormatter, PDFFormatter):
        display_formatter.formatters[formatter.format_type.default_value] = formatter(parent=display_formatter)


def drawn_once(stock: "partial[Any]") -> Callable[[Any], Any]:
    """Return what makes a PNG of a figure as `stock` does, IPython's `print_figure` with its options."""

    def print_figure(figure: Any) -> Any:
        from .cropping import cropped  # which loads matplotlib's drawing

        png = cropped(figure)
        if png is None:
            return stock(figure)
        return b2a_base64(png, newline=False).decode("ascii") if stock.keywords.get("base64") else png

    return print_figure


def is_known(stock: Any) -> bool:
    """Return whether a function is IPython's, with the options that are met here."""
    made_by = sys.modules.get("IPython.core.pylabtools")
    if not made_by or not isinstance(stock, partial) or stock.func is not made_by.print_figure or stock.args:
        return False
    options = {"bbox_inches": "tight", "fmt": "png", **stock.keywords}
    return options.keys() <= KNOWN.keys() and all(KNOWN[key] in (None, value) for key, value in options.items())


class Png(PNGFormatter):
    """PNG, of figures too, which are drawn once."""

    def for_type(self, typ: Any, func: Any = None) -> Any:
        """Register a function for a type."""
        is_figure = func is not None and getattr(typ, "__module__", "") == "matplotlib.figure"
        return super().for_type(typ, drawn_once(func) if is_figure and is_known(func) else func)


class _AsPng:
    """A formatter to which no figures are given: they go to that of PNG, unless another picture is made of them."""

    def for_type(self, typ: Any, func: Any = None) -> Any:
        """Register a function for a type."""
        if func is None or getattr(typ, "__module__", "") != "matplotlib.figure":
            return super().for_type(typ, func)  # type: ignore[misc]
        formatters = self.parent.formatters  # type: ignore[attr-defined]
        say(SHOWN_AS_PNG.format(self.format_type.rpartition("/")[2].partition("+")[0].upper()))  # type: ignore[attr-defined]
        if not any(typ in formatters[mime].type_printers for mime in ("image/png", "image/jpeg")):
            options = {**func.keywords, "fmt": "png", "base64": True}
            formatters["image/png"].for_type(typ, partial(func.func, **options))
        return None


class NoSvg(_AsPng, SVGFormatter):
    """SVG of everything but figures."""


class NoPdf(_AsPng, PDFFormatter):
    """PDF of everything but figures."""
