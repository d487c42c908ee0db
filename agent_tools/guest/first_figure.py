"""A first figure, drawn ahead so that no kernel has to fill matplotlib's caches."""

import io

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def draw() -> None:
    """Draw one figure, without a trace in pyplot or its settings."""
    with matplotlib.rc_context():
        figure = Figure()
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        axes.plot([1, 2], [3, 4], label="a")
        axes.bar([1, 2], [0.5, 1])
        axes.set_title("Title 1.0")
        axes.set_xlabel("x")
        axes.legend()
        figure.savefig(io.BytesIO(), format="png", bbox_inches="tight")
