"""The gateway's page in a real browser, on real sandboxes: what a person does there, and what they see."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Error, expect

from tests.browser.conftest import NewVisit, Visit, is_shown_whole
from tests.gateway.conftest import NewGateway

GATED = (
    "import os, time\nprint('first', flush=True)\nwhile not os.path.exists('gate'): time.sleep(0.02)\nprint('second')"
)
KEY = "key-of-the-test"
MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
PHONE = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}


@pytest.mark.docker
def test_the_example_shows_its_steps_and_its_figure(visit_docker: NewVisit, artefacts: Path) -> None:
    page = visit_docker(viewport={"width": 1280, "height": 1000}).page
    expect(page.get_by_role("heading", name="agent_tools")).to_be_visible()
    expect(page.get_by_text("0 of 64 kept")).to_be_visible()
    page.screenshot(path=artefacts / "page-start.png", full_page=True)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("#output")).to_contain_text("step 3 of 3")
    figure = page.get_by_alt_text("a figure that the code drew")
    expect(figure).to_be_visible()
    assert figure.evaluate("image => image.naturalWidth") > 300
    expect(page.locator("#state")).to_contain_text("Done in")
    expect(page.get_by_text("1 of 64 kept")).to_be_visible()
    expect(page.locator("#containers li")).to_contain_text("this page")
    expect(page.locator("#containers li")).to_contain_text("idle")
    expect(page.get_by_role("definition").first).to_have_text("0")
    page.screenshot(path=artefacts / "page.png", full_page=True)


def test_output_is_seen_while_the_code_still_runs(visit: NewVisit) -> None:
    here = visit()
    here.run(GATED)
    expect(here.page.locator("#output")).to_have_text("first\n")
    expect(here.page.locator("#containers li")).to_contain_text("running code")
    here.ends("Running")
    _folder(here).joinpath("gate").touch()  # the code ends only if its first output was seen
    expect(here.page.locator("#output")).to_contain_text("first\nsecond\n")
    here.ends("Done in")


def test_an_error_is_read_and_variables_stay(visit: NewVisit) -> None:
    here = visit()
    here.run("x = 41\nx / 0")
    here.ends("Failed after")
    error = here.page.locator("#output [data-kind=error]")
    expect(error).to_have_attribute("data-label", "ZeroDivisionError: division by zero")
    expect(error).to_contain_text("line 2")
    here.run("x + 1")
    here.ends("Done in")
    expect(here.page.locator("#output")).to_have_text("42")


@pytest.mark.parametrize("is_stubborn", [False, True])
@pytest.mark.docker
def test_an_endless_loop_is_stopped(visit_docker: NewVisit, is_stubborn: bool) -> None:
    here = visit_docker()
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" if is_stubborn else ""
    step = "pass" if is_stubborn else "time.sleep(0.01)"  # which wakes to be interrupted also on a busy machine
    here.run("raise ValueError")  # the first exception of a kernel loads much, and a busy machine takes its time
    here.ends("Failed after")
    here.run(f"import time\nx = 7\n{deaf}print('spinning', flush=True)\nwhile True: {step}")
    expect(here.page.locator("#output")).to_contain_text("spinning")
    here.page.get_by_role("button", name="Stop").click()
    here.ends("Stopped after")
    told = "did not stop when it was interrupted" if is_stubborn else "KeyboardInterrupt"
    expect(here.page.locator("#output [data-kind=error]")).to_contain_text(told)
    here.run("print('x' in globals())")
    here.ends("Done in")
    expect(here.page.locator("#output")).to_contain_text(str(not is_stubborn))


def test_progress_and_cleared_output_are_shown_as_they_were_meant(visit: NewVisit) -> None:
    here = visit()
    here.run(
        "from IPython.display import clear_output\nprint('draft')\nclear_output(wait=True)\n"
        "for n in range(5):\n    print(f'\\r{n} of 4', end='', flush=True)\nprint('\\nend')"
    )
    here.ends("Done in")
    expect(here.page.locator("#output")).to_have_text("4 of 4\nend\n")


def test_a_table_is_a_table_and_files_that_the_code_wrote_are_saved(visit: NewVisit) -> None:
    here = visit()
    here.page.get_by_role("button", name="Table").click()
    here.page.get_by_role("button", name="Run", exact=True).click()
    here.ends("Done in")
    expect(here.page.locator("#output").get_by_role("columnheader")).to_have_text(["", "day", "sold", "share"])
    expect(here.page.locator("#output").get_by_role("cell", name="Fri 01")).to_be_visible()
    with here.page.expect_download() as saved:
        here.page.locator("#output [data-kind=files]").get_by_role("button", name="shop.csv").click()
    assert saved.value.suggested_filename == "shop.csv"
    assert saved.value.path().read_text().startswith("day,sold,share\nFri 01,12,")


def test_a_container_is_deleted_and_the_next_run_says_that_it_has_a_new_one(visit: NewVisit) -> None:
    here = visit()
    here.run("x = 1")
    here.ends("Done in")
    here.page.get_by_role("button", name="Delete container").click()
    expect(here.page.locator("#containers li")).to_have_count(0)
    here.run("'x' in globals()")
    here.ends("Done in")
    expect(here.page.locator("#output [data-kind=note]")).to_contain_text("this is a new one")
    expect(here.page.locator("#output [data-kind=result]")).to_have_text("False")


def test_the_keyboard_is_enough(visit: NewVisit) -> None:
    here = visit()
    editor = here.page.get_by_label("Python code")
    editor.fill("")
    editor.press_sequentially("for n in range(2):\nprint(n)\n")
    expect(editor).to_have_value("for n in range(2):\n    print(n)\n    ")
    editor.press("Control+Enter")
    here.ends("Done in")
    expect(here.page.locator("#output")).to_have_text("0\n1\n")
    editor.press("Tab")
    expect(here.page.get_by_role("button", name="Run", exact=True)).to_be_focused()


def test_a_gateway_with_keys_asks_for_one_first(visit: NewVisit, artefacts: Path) -> None:
    here = visit({"api_keys": (KEY,)})
    page = here.page
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_hidden()
    page.screenshot(path=artefacts / "page-key.png")
    page.get_by_label("API key").fill(KEY)
    page.get_by_label("API key").press("Enter")
    expect(page.get_by_label("API key")).to_be_hidden()
    here.run("6 * 7")
    here.ends("Done in")
    expect(page.locator("#output")).to_have_text("42")
    here.page.get_by_role("button", name="Delete container").click()
    expect(page.locator("#containers li")).to_have_count(0)
    assert KEY not in page.content()


def test_a_tab_keeps_the_key_only_if_the_user_wants_that(visit: NewVisit) -> None:
    here = visit({"api_keys": (KEY,)})
    here.page.get_by_label("Keep it until this tab is closed").check()
    here.page.get_by_label("API key").fill(KEY)
    here.page.get_by_label("API key").press("Enter")
    expect(here.page.get_by_label("Python code")).to_be_visible()
    here.reload()
    expect(here.page.get_by_label("Python code")).to_be_visible()
    assert KEY not in here.page.evaluate("JSON.stringify([{...localStorage}, document.cookie, location.href])")


def test_a_wrong_key_is_refused_in_words(visit: NewVisit) -> None:
    here = visit({"api_keys": (KEY,)})
    here.page.get_by_label("API key").fill("no-such-key")
    here.page.get_by_role("button", name="Open").click()
    expect(here.page.get_by_role("alert")).to_have_text("The gateway does not know this key.")
    expect(here.page.get_by_label("Python code")).to_be_hidden()
    (complaint,) = here.complaints
    assert "401" in complaint
    here.complaints.clear()


def test_nothing_that_the_code_says_becomes_markup(visit: NewVisit) -> None:
    here = visit()
    httpx.post(f"{here.gateway.url}/v1/containers", json={"name": MARKUP}).raise_for_status()
    name = MARKUP.replace("/", "|")[:200]
    here.run(
        f"import sys\nfrom IPython.display import HTML, display\ns = {MARKUP!r}\nprint(s); print(s, file=sys.stderr)\n"
        f"display(HTML(s), {{'text/html': s, 'text/plain': s, 'image/svg+xml': s}}, s)\n"
        f"display({{'text/plain': s, 'text/html': s}}, raw=True)\nopen({name!r}, 'w').close()\nraise ValueError(s)"
    )
    here.ends("Failed after")
    output = here.page.locator("#output")
    for kind in ("stdout", "stderr", "error", "files"):
        expect(output.locator(f"[data-kind={kind}]")).to_contain_text("<img src=x onerror=")
    expect(here.page.locator("#containers li").filter(has_text="<script>")).to_have_count(1)
    assert here.page.locator("#output img, #containers img").count() == 0
    assert here.page.locator("script").count() == 1
    assert here.page.locator("#files img, #files script").count() == 0
    assert here.page.title() == "agent_tools gateway"


def test_the_browser_is_told_to_run_nothing_but_the_pages_own_script(visit: NewVisit) -> None:
    here = visit()
    policy = httpx.get(here.gateway.url).headers["content-security-policy"]
    for rule in ("default-src 'none'", "script-src 'self'", "require-trusted-types-for 'script'", "form-action 'none'"):
        assert rule in policy.split("; ")
    with pytest.raises(Error, match="TrustedHTML"):
        here.page.evaluate("document.body.innerHTML = '<b>markup</b>'")
    with pytest.raises(Error, match="Failed to fetch"):
        here.page.evaluate("url => fetch(url)", f"{here.gateway.upstream.base_url}/models")
    assert "violates the following Content Security Policy directive" in " ".join(here.complaints)
    here.complaints.clear()


@pytest.mark.docker
def test_on_a_phone_all_is_within_reach(visit_docker: NewVisit, artefacts: Path) -> None:
    here = visit_docker(**PHONE)
    assert is_shown_whole(here.page)
    for view in ("Connect", "Responses", "Code"):  # each is shown from its top, wherever the one before was
        here.page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        here.page.get_by_role("link", name=view).click()
        expect(
            here.page.locator(f"[data-view={view.lower()}][class], section[data-view={view.lower()}]").first
        ).to_be_visible()
        assert here.page.evaluate("scrollY") == 0
    here.run("print('x' * 500)\nprint(pd.DataFrame(np.ones((3, 30))))\nplt.plot([1, 3, 2]); plt.show()\n'y' * 500")
    here.ends("Done in")
    expect(here.page.locator("#containers li")).to_contain_text("this page")
    assert is_shown_whole(here.page)
    here.page.screenshot(path=artefacts / "page-phone.png", full_page=True)


def test_in_the_dark_it_is_dark_and_readable(visit: NewVisit, artefacts: Path) -> None:
    here = visit(color_scheme="dark", viewport={"width": 1280, "height": 1000})
    here.page.get_by_role("button", name="Error").click()
    here.page.get_by_role("button", name="Run", exact=True).click()
    here.ends("Failed after")
    for place in ("body", ".card", ".editor", "#output [data-kind=error]"):
        ink, ground = here.page.locator(place).first.evaluate(
            "place => { const { color, backgroundColor } = getComputedStyle(place); return [color, backgroundColor] }"
        )
        assert _light(ink) > 0.5 > 0.2 > _light(ground), place
    here.page.screenshot(path=artefacts / "page-dark.png", full_page=True)


def test_a_gateway_that_is_gone_is_told(chromium: Browser, new_gateway: NewGateway) -> None:
    with chromium.new_context() as context:
        page = Visit(context, new_gateway({}), "code").page
        expect(page.get_by_text("online")).to_be_visible()
        context.set_offline(True)
        expect(page.get_by_text("no answer")).to_be_visible()
        page.get_by_role("button", name="Run", exact=True).click()
        expect(page.locator("#state")).to_have_text("The gateway does not answer")
        context.set_offline(False)
        expect(page.get_by_text("online")).to_be_visible()


def _folder(here: Visit) -> Path:
    (id_,) = here.gateway.services.containers.running()
    return here.gateway.services.containers.folder(id_)


def _light(colour: str) -> float:
    """Return the lightness of a colour in CSS's `rgb(r, g, b)`, from 0 to 1."""
    red, green, blue = (int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255
