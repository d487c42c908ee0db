"""Interactive figures, drawn by the libraries of `scripts/try figures`, and the findings of axe-core."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import NewVisit, Visit, is_shown_whole
from tests.browser.test_chat import rolls
from tests.browser.test_page import PHONE
from tests.gateway.asking import code

ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / "tests" / "clients" / "node" / "node_modules" / "axe-core" / "axe.min.js"
BARS = {
    "data": [
        {"type": "bar", "x": ["Mon", "Tue", "Wed"], "y": [3, 1, 2], "name": "<a href='https://example.org'>sold</a>"}
    ],
    "layout": {
        "title": {"text": "Sold a day"},
        "height": 320,
        "images": [{"source": "https://example.org/x.png?q=secret"}],
        "mapbox": {"style": "https://example.org/style"},
    },
}
POINTS = {
    "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
    "data": {"values": [{"a": "A", "b": 28}, {"a": "B", "b": 55}, {"a": "C", "b": 43}]},
    "mark": "bar",
    "width": 300,
    "height": 200,
    "encoding": {
        "x": {"field": "a"},
        "y": {"field": "b", "type": "quantitative"},
        "href": {"value": "https://example.org"},
    },
}
RED = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def shows(mime: str, figure: Any, with_picture: bool = True) -> str:
    """Return code that shows a figure as plotly and altair do: as data, with a picture beside it."""
    bundle = f"{{{mime!r}: json.loads({json.dumps(figure)!r}), 'text/plain': 'Figure()'"
    picture = f", 'image/png': {RED!r}" if with_picture else ""
    return f"import json\nfrom IPython.display import display\ndisplay({bundle}{picture}}}, raw=True)"


def drawn(visit: NewVisit, libraries: Path, mime: str, figure: Any, **options: Any) -> Visit:
    """Return a chat that was asked for a figure."""
    ran = code(shows(f"application/vnd.{mime}+json", figure))
    here = visit({"figures": str(libraries)}, view="chat", models={"m": [ran, "Drawn."]}, **options)
    here.ask("Draw.")
    return here


def figures(here: Visit) -> list[str]:
    """Return the text of each figure that was drawn in a frame."""
    here.answered()
    expect(here.page.locator(".interactive[data-state=drawn]").first).to_be_visible()
    return [frame.locator("#place").inner_text() for frame in here.page.frames if "figure.html" in frame.url]


def test_a_plotly_figure_is_drawn_in_a_frame_that_reaches_nothing(
    visit: NewVisit, libraries: Path, artefacts: Path
) -> None:
    here = drawn(visit, libraries, "plotly.v1", BARS)
    (text,) = figures(here)
    assert "Sold a day" in text
    frame = here.page.frames[-1]
    assert frame.locator(".bars .point").count() == 3
    assert frame.locator("a[href], image, [data-title*=cloud i], [data-title*=share i]").count() == 0
    assert frame.evaluate("origin") == "null"
    frame.locator(".bars .point").first.hover(force=True)
    expect(frame.locator(".hovertext").first).to_be_visible()
    expect(here.page.get_by_alt_text("a figure that the code drew")).to_be_hidden()
    here.page.screenshot(path=artefacts / "page-interactive.png")
    here.reload()
    figures(here)


def test_a_vega_figure_is_drawn_without_a_script_being_made_of_its_words(visit: NewVisit, libraries: Path) -> None:
    here = drawn(visit, libraries, "vegalite.v5", POINTS)
    figures(here)
    assert here.page.frames[-1].locator("canvas").evaluate("canvas => canvas.height") > 150


@pytest.mark.parametrize("has_libraries", [True, False])
def test_a_figure_that_cannot_be_drawn_stays_its_picture(visit: NewVisit, libraries: Path, has_libraries: bool) -> None:
    broken = {"data": 7, "mark": {}} if has_libraries else POINTS
    here = drawn(visit, libraries if has_libraries else libraries / "none", "vegalite.v5", broken)
    here.answered()
    expect(here.page.get_by_alt_text("a figure that the code drew")).to_be_visible()
    expect(here.page.locator("iframe")).to_have_count(0)


def test_code_that_is_tried_shows_interactive_figures_too(visit: NewVisit, libraries: Path) -> None:
    here = visit({"figures": str(libraries)})
    here.run(shows("application/vnd.plotly.v1+json", BARS, with_picture=False))
    here.ends("Done in")
    expect(here.page.locator(".interactive[data-state=drawn] iframe")).to_be_visible()
    expect(here.page.locator("#output [data-kind=result]")).to_be_hidden()


def serious(page: Page) -> list[str]:
    """Return what axe finds that is serious or worse, and headers of tables without a name."""
    assert AXE.is_file(), "run scripts/lib/node first"
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run().then(({ violations }) => violations)")
    return [
        f"{each['id']}: {node['html'][:120]}"
        for each in found
        if each["impact"] in ("serious", "critical") or each["id"] == "empty-table-header"
        for node in each["nodes"]
    ]


@pytest.mark.docker
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_has_a_serious_finding_of_axe(visit_docker: NewVisit, scheme: str) -> None:
    text = "# Sum\n\n> $a^2$ and **b**\n\n- [x] a\n- `b`\n\n| a | b |\n|--|--|\n| 1 | 2 |\n\n```python\nx = 1  # one\n```\n\n[l](https://a.b)"
    replies = [*rolls()[:1], text, code("print('a\\n' * 200)\n{}['b']"), "No."]
    here = visit_docker(view="chat", models={"m": replies}, color_scheme=scheme)
    assert serious(here.page) == []
    here.ask("Go.")
    here.answered()
    here.ask("Fail.")
    here.answered(2)
    here.page.get_by_role("button", name="Settings").click()
    assert serious(here.page) == []
    for view in ("Code", "Responses", "Connect"):
        here.page.get_by_role("link", name=view).click()
        if view == "Code":
            here.run("print('a\\n' * 200)\n{}['b']")
            here.ends("Failed after")
        if view == "Responses":
            expect(here.page.locator("#recent tbody tr")).to_have_count(2)
        assert serious(here.page) == [], view
    here.complaints.clear()  # axe's own


def test_a_phone_shows_an_interactive_figure_whole(visit: NewVisit, libraries: Path) -> None:
    here = drawn(visit, libraries, "plotly.v1", BARS, **PHONE)
    figures(here)
    assert is_shown_whole(here.page)
