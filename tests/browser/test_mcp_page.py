"""The page for answers of the MCP server, in the bridge that the protocol publishes for chat programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Frame, Page, Route, expect
from starlette.types import ASGIApp

from agent_tools.containers.containers import Containers
from agent_tools.containers.mount import Mount
from agent_tools.containers.rows import Rows
from agent_tools.mcp.asgi_app import PATH, application
from agent_tools.mcp.config import McpLimits
from agent_tools.mcp.handles import Stock
from tests.browser.conftest import STILL
from tests.browser.test_figures import BARS, POINTS, RED, shows
from tests.gateway.conftest import NewGateway

HERE = Path(__file__).parent
MODULES = HERE.parents[0] / "clients" / "node" / "node_modules"
HOST = "http://host.test"
ALL: dict[str, Any] = {"serverTools": {}, "serverResources": {}, "downloadFile": {}, "logging": {}}
WHOLE = ("content", "structuredContent", "isError")
DRAW = f"from IPython.display import display\ndisplay({{'image/png': {RED!r}}}, raw=True)\n"


def result(*content: dict[str, str]) -> dict[str, Any]:
    """Return the message of a client with the answer of a tool."""
    return {"jsonrpc": "2.0", "method": "ui/notifications/tool-result", "params": {"content": content}}


class View:
    """A page for an answer in a client, and what its browser complained of."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.complaints, self.facts = page, list[str](), dict[str, Any]()
        page.on("console", lambda said: self._note(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self._check(request.url))
        page.route("**/*", lambda route: self._serve(route, url))
        page.goto(f"{HOST}/")
        page.wait_for_function("() => Boolean(window.show)")

    def show(self, arguments: dict[str, Any], tool: str = "run_python", **options: Any) -> Frame:
        """Call a tool, and return the page for its answer."""
        usual = {"fields": WHOLE, "capabilities": ALL, "mode": "auto", "theme": "light", "declares": True}
        self.facts = self.page.evaluate("given => show(given)", {**usual, "tool": tool, "input": arguments, **options})
        return self.page.frames[1]

    def run(self, code: str, **options: Any) -> Frame:
        """Run code, and return the page for its answer once it has all outputs."""
        view = self.show({"code": code}, **options)
        self.page.wait_for_function("() => seen.answered > 0")
        expect(view.locator("#outputs > *").first).to_be_attached()
        return view

    def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        """Call a tool as the model's client does."""
        return self.page.evaluate("([name, arguments]) => call({ name, arguments })", [tool, arguments])

    def seen(self, name: str) -> Any:
        return self.page.evaluate(f"seen.{name}")

    def _note(self, complaint: str) -> None:
        if "405 (Method Not Allowed)" not in complaint:  # of the stream that clients of older protocols ask for
            self.complaints.append(complaint)

    def _check(self, url: str) -> None:
        if not url.startswith((f"{HOST}/", "data:", "about:")):
            self.complaints.append(url)

    @staticmethod
    def _serve(route: Route, url: str) -> None:
        path = route.request.url.removeprefix(HOST)
        if path == "/mcp" and route.request.method == "POST":
            headers = {
                name: value for name, value in route.request.headers.items() if name not in ("origin", "referer")
            }
            route.fulfill(response=route.fetch(url=f"{url}/mcp", headers=headers, timeout=60_000))
        elif path == "/mcp":
            route.fulfill(status=405)
        elif path.startswith("/modules/"):
            route.fulfill(path=MODULES / path.removeprefix("/modules/"), content_type="text/javascript")
        elif path == "/":
            route.fulfill(path=HERE / "mcp_host.html", content_type="text/html")
        else:
            route.fulfill(status=204)


def _served(containers: Containers[Any], rows: Rows, answer_within: float) -> AbstractAsyncContextManager[ASGIApp]:
    return application(Stock(containers, rows), lambda _: None, McpLimits(answer_within=answer_within))


NewView = Callable[..., View]


@pytest.fixture
def view(chromium: Browser, new_gateway: NewGateway) -> Iterator[NewView]:
    """Opens a client before a server of its own; at the end, its browser must have had nothing to complain of."""
    assert MODULES.is_dir(), "run scripts/lib/node first"
    views: list[View] = []
    with ExitStack() as stack:

        def make(libraries: Path | None = None, answer_within: float = 45) -> View:
            mount = Mount(PATH, lambda containers, rows: _served(containers, rows, answer_within))
            gateway = new_gateway({}, mounts=[mount], figures=str(libraries or HERE))
            context = stack.enter_context(chromium.new_context(**STILL))
            views.append(View(context.new_page(), gateway.url))
            return views[-1]

        yield make
        for each in views:
            each.page.unroute_all(behavior="ignoreErrors")  # a call may be under way, and would fail in a later test
        assert [complaint for each in views for complaint in each.complaints] == []


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_page_shows_text_values_errors_and_pictures_in_their_order(view: NewView, mode: str) -> None:
    here = view()
    page = here.run(f"import sys\nprint('one')\n{DRAW}print('two', file=sys.stderr)\n1/0", mode=mode)
    assert here.facts["mime"] == "text/html;profile=mcp-app"
    assert here.facts["meta"]["ui"] == {"prefersBorder": True}
    expect(page.locator("#outputs img")).to_have_js_property("naturalWidth", 1)
    kinds = page.locator("#outputs > *").evaluate_all("all => all.map(each => each.dataset.kind ?? each.tagName)")
    assert kinds == ["stdout", "IMG", "stderr", "error"]
    expect(page.locator("[data-kind=error]")).to_contain_text("ZeroDivisionError: division by zero")
    expect(page.locator("#code pre")).to_contain_text("1/0")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(1, 2, 3)"
    assert here.seen("sizes")[-1] > 100


def test_a_data_frame_is_a_table_that_sorts_by_its_numbers(view: NewView) -> None:
    page = view().run("import pandas as pd\npd.DataFrame({'name': ['b', 'a', 'c'], 'n': [9, 10, 1]})")
    names = page.locator("tbody tr td:nth-child(2)")
    page.get_by_role("button", name="n", exact=True).click()
    assert names.all_inner_texts() == ["c", "b", "a"]
    page.get_by_role("button", name="n", exact=True).click()
    assert names.all_inner_texts() == ["a", "b", "c"]
    page.get_by_role("button", name="name").click()
    assert names.all_inner_texts() == ["a", "b", "c"]
    assert page.locator("th[aria-sort]").count() == 1


def test_nothing_that_code_says_becomes_markup_or_reaches_the_client(view: NewView) -> None:
    evil = (
        "<img src=x onerror=\"parent.postMessage({jsonrpc:'2.0',id:1,method:'tools/call',params:{name:'close'}},'*')\">"
    )
    shown = {
        "text/html": f"{evil}<script>window.pwned=1</script>",
        "image/svg+xml": f"<svg xmlns='http://www.w3.org/2000/svg' onload='window.pwned=1'>{evil}</svg>",
        "application/javascript": "window.pwned=1",
    }
    here = view()
    page = here.run(
        f"from IPython.display import display\nevil = {evil!r}\ndisplay({shown!r}, raw=True)\n"
        "display({**" + repr(shown) + ", 'text/plain': evil}, raw=True)\n"
        "import pandas as pd; print(pd.DataFrame({evil: [evil], 'b': ['<b>x</b>']}).to_string())\n"
        "open('<img src=x onerror=pwned=1>.csv', 'w').write('x')\n"
        "print('</script><script>window.pwned=1</script>')\nraise ValueError(evil)"
    )
    expect(page.locator("[data-kind=error]")).to_contain_text("ValueError")
    expect(page.locator("footer button")).to_have_text("<img src=x onerror=pwned=1>.csv")
    tags = page.evaluate("[...document.querySelectorAll('main *')].map(each => each.localName)")
    assert {"img", "script", "svg", "b", "a", "iframe"}.isdisjoint(tags)
    assert page.evaluate("window.pwned") is None
    assert [call["name"] for call in here.seen("calls")] == ["get_outputs"]


def test_a_picture_that_is_none_is_not_loaded(view: NewView) -> None:
    here = view()
    page = here.show({"code": "1"}, capabilities={})
    for mime, data in (
        ("image/svg+xml", RED),
        ("image/png", '"onerror="'),
        ("text/html", "PGI+"),
        ("image/png;x", RED),
    ):
        message = result({"type": "image", "mimeType": mime, "data": data})
        here.page.evaluate("given => document.querySelector('iframe').contentWindow.postMessage(given, '*')", message)
        expect(page.locator("#outputs")).to_have_text("A figure that cannot be shown.")
        assert page.locator("img").count() == 0


def test_only_the_client_is_listened_to(view: NewView) -> None:
    here = view()
    page = here.run("'mine'")
    forged = {"type": "text", "text": "forged"}
    page.evaluate("given => window.postMessage(given, '*')", result(forged))
    page.evaluate("new Promise(requestAnimationFrame)")
    expect(page.locator("#outputs")).to_have_text("'mine'")


@pytest.mark.parametrize("fields", [("content", "isError"), ("content",), WHOLE])
def test_a_client_that_passes_little_on_shows_what_it_has(view: NewView, fields: tuple[str, ...]) -> None:
    here = view()
    page = here.show({"code": f"{DRAW}print('printed')\nopen('a.csv', 'w').write('1')"}, fields=fields, capabilities={})
    expect(page.locator("#outputs")).to_contain_text("printed")
    expect(page.locator("#outputs img")).to_have_count(1)
    expect(page.locator("footer")).to_contain_text("a.csv")
    assert here.seen("calls") == here.seen("reads") == []
    rich = here.page
    rich.reload()
    rich.wait_for_function("() => Boolean(window.show)")
    page = here.run(f"print('first')\n{DRAW}'last'", fields=fields)
    expect(page.locator("#outputs > *").last).to_have_text("'last'")


def test_a_file_is_saved_by_the_client(view: NewView) -> None:
    here = view()
    page = here.run("open('out 1.csv', 'w').write('a,b')")
    page.get_by_role("button", name="out 1.csv").click()
    here.page.wait_for_function("() => seen.downloads.length > 0")
    (download,) = here.seen("downloads")
    assert (download["type"], download["resource"]["text"]) == ("resource", "a,b")


def test_a_run_that_goes_on_is_waited_for_without_taking_its_answer(view: NewView) -> None:
    here = view(answer_within=0.5)
    code = "import time, os\nprint('begun', flush=True)\nwhile not os.path.exists('go'): time.sleep(.05)\n'ended'"
    page = here.show({"code": code})
    expect(page.locator("#state")).to_contain_text("Running: ")
    page.get_by_role("button", name="Wait for the rest").click()
    container = here.facts["answer"]["structuredContent"]["container"]
    here.call("put_file", {"container": container, "path": "go", "content": ""})
    expect(page.locator("[data-kind=result]")).to_have_text("'ended'")
    expect(page.locator("#outputs")).to_contain_text("begun")
    assert here.call("wait", {"container": container})["structuredContent"]["result"] == "'ended'"


def test_a_run_is_stopped_by_a_second_press(view: NewView) -> None:
    here = view(answer_within=0.5)
    page = here.show({"code": "import time\nprint('begun', flush=True)\nwhile True: time.sleep(.05)"})
    container = here.facts["answer"]["structuredContent"]["container"]
    printed = here.facts["answer"]["structuredContent"]["stdout"]
    while "begun" not in printed:
        printed += here.call("wait", {"container": container})["structuredContent"]["stdout"]
    page.get_by_role("button", name="Stop").click()
    assert "restart" not in [call["name"] for call in here.seen("calls")]
    page.get_by_role("button", name="Stop, and lose all variables").click()
    expect(page.locator("[data-kind=error]")).to_contain_text("KernelDied")


def test_a_command_shows_both_streams_and_how_it_ended(view: NewView) -> None:
    here = view()
    page = here.show({"command": "echo out; echo err >&2; exit 3"}, "run_command")
    expect(page.locator("#outputs > *")).to_have_count(3)
    texts = [page.locator(f"[data-kind={kind}]").inner_text().strip() for kind in ("stdout", "stderr", "error")]
    assert texts == ["out", "err", "exit code 3"]


@pytest.mark.parametrize(
    ("mime", "figure", "mark"),
    [("application/vnd.plotly.v1+json", BARS, ".bars .point"), ("application/vnd.vegalite.v5+json", POINTS, "canvas")],
)
def test_a_figure_is_drawn_in_a_frame_that_reaches_nothing(
    view: NewView, libraries: Path, artefacts: Path, mime: str, figure: dict[str, Any], mark: str
) -> None:
    here = view(libraries)
    page = here.run(shows(mime, figure))
    expect(page.locator(".interactive[data-state=drawn] iframe")).to_be_visible()
    expect(page.locator("img")).to_be_hidden()
    drawn = here.page.frames[2]
    expect(drawn.locator(mark).first).to_be_visible()
    assert drawn.locator("a[href], image").count() == 0
    assert (drawn.evaluate("origin"), page.evaluate("origin")) == ("null", "null")
    assert here.seen("strangers") == 0
    assert {uri.partition("/agent-tools/")[0] for uri in here.seen("reads")} == {"ui:/"}
    here.page.screenshot(path=artefacts / f"mcp-{mime[16:20]}.png")


def test_a_frame_of_a_figure_cannot_speak_for_the_page(view: NewView, libraries: Path) -> None:
    here = view(libraries)
    here.run(shows("application/vnd.plotly.v1+json", BARS))
    expect(here.page.frames[1].locator(".interactive[data-state=drawn]")).to_be_visible()
    calls = len(here.seen("calls"))
    call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "close", "arguments": {}}}
    drawn = here.page.frames[2]
    drawn.evaluate(
        "([call, result]) => { top.postMessage(call, '*'); parent.postMessage(result, '*'); }", [call, result()]
    )
    here.page.wait_for_function("() => seen.strangers > 0")
    assert len(here.seen("calls")) == calls


@pytest.mark.parametrize("has_libraries", [True, False])
def test_a_figure_that_cannot_be_drawn_stays_its_picture(view: NewView, libraries: Path, has_libraries: bool) -> None:
    here = view(libraries if has_libraries else None)
    page = here.run(shows("application/vnd.vegalite.v5+json", {"data": 7, "mark": {}} if has_libraries else POINTS))
    expect(page.locator("img")).to_be_visible()
    expect(page.locator("iframe")).to_have_count(0)
