"""Charts of libraries that draw in a browser: as a picture where the library can, else as a page of their own."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent_tools.guest.kernel import charts
from agent_tools.guest.kernel.charts import PLOTLY_TYPE, adapt_plotly

CHART = {"data": [{"type": "bar", "y": [1, 2]}]}


class Renderer:
    def __init__(self, **_: Any) -> None:
        pass


class Data(Renderer):
    def to_mimebundle(self, fig_dict: Any) -> dict[str, Any]:
        return {PLOTLY_TYPE: fig_dict}


class Png(Renderer):
    def to_mimebundle(self, fig_dict: Any) -> dict[str, Any]:
        return {"image/png": "drawn"}


class NoPng(Renderer):
    def to_mimebundle(self, fig_dict: Any) -> dict[str, Any]:
        raise ValueError("Image export requires the Kaleido package")


class Renderers(dict[str, Any]):
    """As plotly's: names of renderers, and settings."""


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns what a chart is shown as by plotly's default renderer, whose pictures a class draws."""
    monkeypatch.chdir(tmp_path)
    plotly = SimpleNamespace(to_html=lambda chart, validate: f"<html>{chart['data'][0]['y']}")
    monkeypatch.setitem(sys.modules, "plotly.io", plotly)  # type: ignore[arg-type]

    def shown(png: type[Renderer], chart: Any = CHART) -> dict[str, Any]:
        names = Renderers(plotly_mimetype=None, png=None)
        module = SimpleNamespace(
            MimetypeRenderer=Renderer, PlotlyRenderer=Data, PngRenderer=png, renderers=names, nbformat=None
        )
        adapt_plotly(module)
        bundle: dict[str, Any] = names[names.default].to_mimebundle(chart)  # type: ignore[attr-defined]
        return bundle

    return shown


def test_a_chart_is_a_picture_where_plotly_can_draw_one(shown: Any, tmp_path: Path) -> None:
    assert shown(Png) == {PLOTLY_TYPE: CHART, "image/png": "drawn"}
    assert list(tmp_path.iterdir()) == []


def test_a_chart_that_plotly_cannot_draw_is_a_page_of_its_own(shown: Any, tmp_path: Path) -> None:
    (tmp_path / "plotly_1.html").write_text("the user's")
    bundle = shown(NoPng)
    assert bundle[PLOTLY_TYPE] == CHART
    assert "plotly_2.html" in bundle["text/plain"]
    assert (tmp_path / "plotly_2.html").read_text() == "<html>[1, 2]"
    assert (tmp_path / "plotly_1.html").read_text() == "the user's"


def test_where_no_page_can_be_written_the_reason_is_told(
    shown: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charts, "MAX_PAGES", 1)
    assert "plotly_1.html" in shown(NoPng)["text/plain"]
    for chart in (CHART, {"data": []}):
        bundle = shown(NoPng, chart)
        assert bundle[PLOTLY_TYPE] == chart
        assert "without a picture: Image export requires the Kaleido package" in bundle["text/plain"]
    assert [path.name for path in tmp_path.iterdir()] == ["plotly_1.html"]
