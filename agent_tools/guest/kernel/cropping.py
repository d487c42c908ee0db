"""Draws figures as PNG only once and crops them to the tight box; stock matplotlib first lays everything out.

Row "one more figure" of `benchmarks/latency.py`: png.py alone takes 7.6 ms a figure, where Pillow takes 20.

A figure with parts outside of it, or that cannot be cut (with a frame or a hatch), is drawn in the stock way, and so is
every figure of an unknown matplotlib. Sizes are those of the stock way; lines may be off by a pixel, since a cut has
whole pixels.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy
from matplotlib import rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from .png import png

SLACK = 1e-3  # pixels; what is computed to lie on the edge may lie beside it
TICK = 1e-8  # pixels short of a whole one that matplotlib still takes for a whole one, from 3.11 on
OPAQUE = 255


def cropped(figure: Any) -> bytes | None:
    """Return a figure as PNG; None if it cannot be drawn in this way, for any exception."""
    try:
        return _png(figure) if _is_plain(figure) else None
    except Exception:  # noqa: BLE001  (whatever it is: the stock way draws the figure, or says why not)
        return None


def _is_plain(figure: Any) -> bool:
    """Return whether a figure has something to draw, on the canvas that is met here."""
    kind = type(figure.canvas)
    is_stock = (kind.print_png, kind.draw, kind.print_figure) == (
        FigureCanvasAgg.print_png,
        FigureCanvasAgg.draw,
        FigureCanvasAgg.print_figure,
    )
    return is_stock and bool(figure.axes or figure.lines)


def _png(figure: Any) -> bytes | None:
    """Draw a figure and crop it; return None if that is not possible."""
    with _saving(figure.canvas):
        figure.canvas.draw()
        box = figure.get_tightbbox(figure.canvas.get_renderer())
        pad = rcParams["savefig.pad_inches"]
        if not isinstance(pad, (int, float)):
            return None
        pixels = _cut(figure, box, pad)
    if pixels is None:
        return None
    return _written(pixels, figure.dpi)


def _written(pixels: Any, dpi: float) -> bytes:
    """Return the PNG with matplotlib's metadata, without an alpha channel if all pixels are opaque."""
    if (pixels[..., 3] == OPAQUE).all():
        pixels = pixels[..., :3].copy()
    return png(pixels, dpi, f"Matplotlib version{matplotlib.__version__}, https://matplotlib.org/")


@contextmanager
def _saving(canvas: Any) -> Iterator[None]:
    """Draw as for a file, animated artists included."""
    before = getattr(canvas, "_is_saving", False)
    canvas._is_saving = True
    try:
        yield
    finally:
        canvas._is_saving = before


def _cut(figure: Any, box: Any, pad: float) -> Any:
    """The pixels of a box (inches) and its padding; None if more than padding lies beside the drawing."""
    drawing, dpi = numpy.asarray(figure.canvas.buffer_rgba()), figure.dpi
    height, width = drawing.shape[:2]
    x0, y0, x1, y1 = (edge * dpi for edge in box.extents)
    colour = _colour(figure)
    if colour is None or min(x0, y0, width - x1, height - y1) < -SLACK:
        return None
    padded = box.padded(pad)
    tick = TICK if matplotlib.__version_info__ >= (3, 11) else 0.0
    wide, high = (int(length * dpi + tick) for length in padded.size)
    left, top = round(padded.x0 * dpi), round(height - high - padded.y0 * dpi)
    whole: Any = numpy.full((high, wide, 4), colour, numpy.uint8)
    found = drawing[max(0, top) : top + high, max(0, left) : left + wide]
    above, before = max(0, -top), max(0, -left)
    whole[above : above + found.shape[0], before : before + found.shape[1]] = found
    return whole


def _colour(figure: Any) -> Any:
    """Return the background colour of the figure; None if it is not one opaque colour."""
    patch = figure.patch
    is_simple = type(patch) is Rectangle and patch.get_visible() and not patch.get_hatch() and not patch.get_linewidth()
    red, green, blue, alpha = to_rgba(patch.get_facecolor())
    if not is_simple or alpha != 1 or patch.get_path_effects() or patch.get_agg_filter() or patch.get_sketch_params():
        return None
    return [round(255 * part) for part in (red, green, blue, alpha)]
