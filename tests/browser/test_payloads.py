"""Forty pieces of markup that run a script where they are taken for markup: in outputs, file names and models' text."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import NewVisit, Visit

HIT = "window.hit=1"
PAYLOADS = (
    f"<script>{HIT}</script>",
    f"<img src=x onerror={HIT}>",
    f"<svg onload={HIT}>",
    f"<svg><script>{HIT}</script></svg>",
    f"<svg><animate onbegin={HIT} attributeName=x dur=1s>",
    f"<svg><a href='javascript:{HIT}'><text x=0 y=9>a</text></a></svg>",
    f"<svg><foreignObject><iframe srcdoc='<script>parent.{HIT}</script>'></iframe></foreignObject></svg>",
    f"<svg><use href=\"data:image/svg+xml,<svg id='x' xmlns='http://www.w3.org/2000/svg'><script>{HIT}</script></svg>#x\"/></svg>",
    f"<math><mtext><table><mglyph><style><img src=x onerror={HIT}>",
    f"<math><maction actiontype='statusline' xlink:href='javascript:{HIT}'>a</maction></math>",
    f"<iframe srcdoc='<script>parent.{HIT}</script>'></iframe>",
    f"<iframe src='javascript:parent.{HIT}'></iframe>",
    f"<object data='javascript:{HIT}'></object>",
    f"<embed src='javascript:{HIT}'>",
    f"<a href='javascript:{HIT}' id=x tabindex=1 autofocus onfocus={HIT}>a</a>",
    f"<input autofocus onfocus={HIT}>",
    f"<select autofocus onfocus={HIT}>",
    f"<textarea autofocus onfocus={HIT}></textarea>",
    f"<details open ontoggle={HIT}>a</details>",
    f"<video><source onerror={HIT}></video>",
    f"<audio src=x onerror={HIT}></audio>",
    f"<body onload={HIT}>",
    f"<marquee onstart={HIT}>a</marquee>",
    f"<style>@keyframes x{{}}</style><b style='animation-name:x' onanimationstart={HIT}>a</b>",
    f"<form action='javascript:{HIT}'><input type=submit id=submit></form>",
    "<base href='https://evil.example/'>",
    "<meta http-equiv=refresh content='0;url=https://evil.example/'>",
    "<link rel=stylesheet href='https://evil.example/x.css'>",
    "<link rel=prefetch href='https://evil.example/x'>",
    "<img src='https://evil.example/x.png'>",
    "<div style=\"background:url('https://evil.example/x.png')\">a</div>",
    f"<noscript><p title='</noscript><img src=x onerror={HIT}>'>",
    f"<template><img src=x onerror={HIT}></template>",
    f"</textarea></pre></code><script>{HIT}</script>",
    f'"><img src=x onerror={HIT}>',
    f"'-{HIT}-'",
    f"[a](javascript:{HIT})",
    f'![a](x"onerror="{HIT})',
    f"$\\href{{javascript:{HIT}}}{{a}}$ $\\htmlData{{x}}{{<img src=x onerror={HIT}>}}$",
    f"\x1b]8;;javascript:{HIT}\x07a\x1b]8;;\x07<img/src=x\x0conerror={HIT}>",
)
CODE = """
from IPython.display import HTML, SVG, Javascript, Latex, Markdown, display
import sys
svg = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9">{}</svg>'
for n, s in enumerate(%r):
    print(s)
    print(s, file=sys.stderr)
    display(HTML(s), Markdown(s), Latex(s), Javascript(s), s)
    display({'image/svg+xml': svg.format(s), 'text/plain': s}, raw=True)
    display({'application/json': {s: s}, 'text/plain': s}, raw=True)
    display({'application/vnd.plotly.v1+json': {'data': [{'name': s}]}, 'text/plain': s}, raw=True)
    display({'text/html': s, 'application/vnd.vegalite.v5+json': {'title': s}, 'text/plain': s}, raw=True)
    open(f'{n:02}' + s.replace('/', '|').replace(chr(0), '')[:100], 'w').close()
raise ValueError(s)
"""
FORBIDDEN = "iframe[srcdoc], object, embed, base, meta[http-equiv=refresh], form[action]"
FORBIDDEN += ", [onerror], [onload], a[href^=javascript]"


def check(here: Visit) -> None:
    assert len(PAYLOADS) == 40
    page = here.page
    assert page.evaluate("window.hit") is None
    assert page.locator("script").count() == 1
    assert page.locator(f"main :is({FORBIDDEN})").count() == 0
    assert page.evaluate("document.baseURI").startswith(here.gateway.url)


@pytest.mark.docker
def test_no_payload_in_outputs_or_names_of_files_runs(visit_docker: NewVisit) -> None:
    here = visit_docker()
    here.run(CODE % (PAYLOADS,))
    here.ends("Failed after")
    expect(here.page.locator("#output")).to_contain_text(f"<script>{HIT}</script>")
    here.page.wait_for_timeout(500)
    check(here)


def test_no_payload_in_a_models_text_runs(visit: NewVisit) -> None:
    text = "\n\n".join(f"{each}\n\n* {each}\n\n| a |\n|---|\n| {each} |\n\n```html\n{each}\n```" for each in PAYLOADS)
    here = visit(view="chat", models={"m": [text]})
    here.ask("\n".join(PAYLOADS))
    here.answered()
    expect(here.page.locator(".prose").first).to_contain_text(f"<svg onload={HIT}>")
    here.page.wait_for_timeout(500)
    check(here)
