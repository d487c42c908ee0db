"""Outputs as pages show them."""

from __future__ import annotations

import pytest

from agent_tools.browser.outputs import figure_of, live_outputs
from agent_tools.results.execution import Display, Result

MIME, PLOTLY = "application/vnd.plotly.v1+json", {"data": [{"type": "bar", "y": [1, 2]}]}


@pytest.mark.parametrize("version", ["vega.v6+json", "vegalite.v5+json", "vegalite.v6.json", "plotly.v1+json"])
def test_figures_are_known_by_their_types(version: str) -> None:
    kind = version.partition(".")[0]
    assert figure_of({f"application/vnd.{version}": {}}) == {"kind": kind, "data": {}}
    assert figure_of({f"application/vnd.{version}": "text"}) is None
    assert figure_of({"application/vnd.other.v1+json": {}}) is None


def test_a_figure_comes_with_its_data_and_its_text() -> None:
    (shown,) = live_outputs(Display({MIME: PLOTLY, "text/plain": "Figure()"}))
    assert shown == {
        "kind": "figure",
        "figure": {"kind": "plotly", "data": PLOTLY},
        "url": None,
        "text": "Figure()",
    }


def test_no_markup_of_code_is_shown() -> None:
    forms = {"text/html": "<b>1</b>", "image/svg+xml": "<svg/>", "application/javascript": "1", "text/plain": "1"}
    assert list(live_outputs(Result(forms))) == [{"kind": "result", "text": "1"}]
    assert list(live_outputs(Display({name: text for name, text in forms.items() if name != "text/plain"}))) == []
