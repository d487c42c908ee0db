"""Displays of a cell: figures as PNG or JPEG for any backend and format."""

import sys
from binascii import b2a_base64
from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from typing import Any

from IPython.core.formatters import PDFFormatter, PNGFormatter, SVGFormatter

from .magics import say

INLINE_BACKEND = "matplotlib_inline.backend_inline"  # imported when it is needed, since it loads matplotlib's drawing
INLINE = (None, "auto", "inline", f"module://{INLINE_BACKEND}")
FILES_ONLY = ("agg", "cairo", "pdf", "pgf", "ps", "svg", "template")
WITH_WINDOWS = ("gtk", "ipympl", "macosx", "module://ipympl", "nbagg", "notebook", "qt", "tk", "webagg", "widget", "wx")
"""The beginnings of the names of matplotlib's backends that draw in a window, a widget or a browser."""
NO_SCREEN = (
    "matplotlib backend {}: there is no window or widget to draw in; figures are shown as pictures, as with inline."
)
SHOWN_AS_PNG = "Figures are shown as PNG here, not as {}; savefig writes files of any format."
KNOWN = {"fmt": "png", "bbox_inches": "tight", "base64": None}  # options of the stock way, and the values meant here
NO_LOOP = "%gui {}: there is no screen here, so no event loop of a window system runs."


def backend_for(asked: str | None) -> str | None:
    """Return the backend for `%matplotlib NAME`: NAME itself if it only writes files, else inline."""
    name = asked.lower() if asked else None
    if name in INLINE or name in FILES_ONLY:
        return name
    say(NO_SCREEN.format(asked))
    return "inline"


class Shown:
    """Shows figures for any backend that draws them.

    The inline backend shows its own. Under every other backend (`matplotlib.use("Agg")`, a module that says so,
    MPLBACKEND) matplotlib shows nothing: then `plt.show()` and the end of a cell show and close what is open, as inline
    does.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        shell.events.register("post_execute", self.end_cell)
        shell.display_formatter.formatters["image/png"].for_type_by_name("matplotlib.figure", "Figure", _picture)

    def adapt(self, pyplot: Any) -> None:
        """Adapt `matplotlib.pyplot`, which has just been imported."""
        show, switch = pyplot.show, pyplot.switch_backend

        @wraps(show)
        def show_all(*args: Any, **kwargs: Any) -> Any:
            return show(*args, **kwargs) if _is_inline() else self._show_open()

        @wraps(switch)
        def switch_backend(newbackend: Any) -> None:
            has_window = isinstance(newbackend, str) and newbackend.lower().startswith(WITH_WINDOWS)
            switch(backend_for(newbackend) if has_window else newbackend)
            if _is_inline():  # which `%matplotlib agg` has switched off
                import_module(INLINE_BACKEND).configure_inline_support(self._shell, "inline")

        pyplot.show, pyplot.switch_backend = show_all, switch_backend

    def end_cell(self) -> None:
        """Show the figures that the cell has left open."""
        try:
            if "matplotlib.pyplot" in sys.modules and not _is_inline():
                self._show_open()
            elif INLINE_BACKEND in sys.modules:  # here an interrupt is shown without words about callbacks
                sys.modules[INLINE_BACKEND].flush_figures()
        except (Exception, KeyboardInterrupt):  # noqa: BLE001  (of drawing: it belongs to the code)
            self._shell.showtraceback()

    def _show_open(self) -> None:
        import_module(INLINE_BACKEND).show(close=True)


def _is_inline() -> bool:
    name = sys.modules["matplotlib"].rcParams._get_backend_or_none()
    return (name.lower() if name else None) in INLINE


def _picture(figure: Any) -> Any:
    """Return a figure as a PNG in base64, before anything has registered matplotlib's figures with IPython."""
    print_figure = import_module("IPython.core.pylabtools").print_figure
    return drawn_once(partial(print_figure, fmt="png", base64=True))(figure)


def show_as_png(display_formatter: Any) -> None:
    """Draw figures once, and show them as PNG where SVG or PDF is chosen, which a model cannot see."""
    for formatter in (Png, NoSvg, NoPdf):
        display_formatter.formatters[formatter.format_type.default_value] = formatter(parent=display_formatter)


def show_as_asked(display_formatter: Any) -> None:
    """Show figures in the chosen format, for a person."""
    for formatter in (SVGFormatter, PDFFormatter):
        display_formatter.formatters[formatter.format_type.default_value] = formatter(parent=display_formatter)


def drawn_once(stock: "partial[Any]") -> Callable[[Any], Any]:
    """Return a function that draws a PNG like `stock`, IPython's `print_figure` with its options, but draws once."""

    def print_figure(figure: Any) -> Any:
        from .cropping import cropped  # which loads matplotlib's drawing

        png = cropped(figure)
        if png is None:
            return stock(figure)
        return b2a_base64(png, newline=False).decode("ascii") if stock.keywords.get("base64") else png

    return print_figure


def is_known(stock: Any) -> bool:
    """Return whether a function is IPython's `print_figure` with options that `drawn_once` supports."""
    made_by = sys.modules.get("IPython.core.pylabtools")
    if not made_by or not isinstance(stock, partial) or stock.func is not made_by.print_figure or stock.args:
        return False
    options = {"bbox_inches": "tight", "fmt": "png", **stock.keywords}
    return options.keys() <= KNOWN.keys() and all(KNOWN[key] in (None, value) for key, value in options.items())


class Png(PNGFormatter):
    """PNG formatter that draws figures once."""

    def for_type(self, typ: Any, func: Any = None) -> Any:
        """Register a function for a type."""
        is_figure = func is not None and getattr(typ, "__module__", "") == "matplotlib.figure"
        return super().for_type(typ, drawn_once(func) if is_figure and is_known(func) else func)


class _AsPng:
    """A formatter that passes figures on to PNG, unless another picture is made of them."""

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
