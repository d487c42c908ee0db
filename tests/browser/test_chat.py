"""The page's conversation in a real browser, on real sandboxes, with models of a script."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import nbformat
import pytest
from playwright.sync_api import Page, Route, expect

from agent_tools.models.base import Usage
from agent_tools.testing import ScriptedReply
from tests.browser.conftest import NewVisit, Visit, is_shown_whole
from tests.browser.test_page import GATED, KEY, MARKUP, PHONE
from tests.gateway.asking import code, post, until
from tests.identity_provider import IdentityProvider

ROLLS = """# Roll two dice 10,000 times
rolls = np.random.default_rng(7).integers(1, 7, (10_000, 2)).sum(axis=1)
counts = pd.Series(rolls).value_counts().sort_index()
table = pd.DataFrame({"rolls": counts, "share": (counts / len(rolls)).round(3)})
table.index.name = "sum"
table.to_csv("dice.csv")
print(table.head(4))

plt.figure(figsize=(9, 3))
plt.bar(counts.index, counts, color="#4f46e5")
plt.xlabel("sum of two dice"); plt.xticks(range(2, 13))
plt.show()"""
SAID = "Seven comes up most, in **one roll of six**: [dice.csv](sandbox:/mnt/data/dice.csv) has all of it."
DESKTOP = {"viewport": {"width": 1280, "height": 1240}}


def rolls() -> list[Any]:
    first = code(ROLLS, piece=12, reasoning="Ten thousand rolls are quick.", usage=Usage(388, 176))
    return [first, ScriptedReply(text=SAID, piece=9, usage=Usage(1204, 31))]


@pytest.mark.docker
def test_a_question_is_worked_out_before_ones_eyes(visit_docker: NewVisit, artefacts: Path) -> None:
    here = visit_docker(view="chat", models={"qwen3-coder-30b": rolls()}, **DESKTOP)
    page = here.page
    expect(page.get_by_label("Model")).to_have_value("qwen3-coder-30b")
    page.screenshot(path=artefacts / "page-chat-start.png")
    here.ask("Simulate 10,000 rolls of two dice and draw how often each sum comes up.")
    here.answered()
    call = page.get_by_role("region", name="Code")
    expect(call.locator(".state")).to_contain_text("done")
    expect(call.locator(".token-comment")).to_have_text("# Roll two dice 10,000 times")
    expect(call.get_by_role("columnheader")).to_have_text(["sum", "rolls", "share"])
    expect(call.get_by_role("row")).to_have_count(5)
    expect(page.get_by_alt_text("a figure that the code drew")).to_be_visible()
    expect(page.locator(".prose strong")).to_have_text("one roll of six")
    expect(page.locator(".foot")).to_contain_text("qwen3-coder-30b · ")
    expect(page.locator(".foot")).to_contain_text("1,592 tokens in, 207 out")
    page.get_by_text("Thinking").click()
    expect(page.get_by_text("Ten thousand rolls are quick.")).to_be_visible()
    page.get_by_text("Thinking").click()
    expect(page.locator("#files")).to_contain_text("dice.csv")
    page.screenshot(path=artefacts / "page-chat.png")
    for place in (page.locator(".prose"), page.locator("#files")):
        with page.expect_download() as saved:
            place.get_by_role("button", name="dice.csv", exact=True).click()
        assert saved.value.path().read_text().startswith("sum,rolls,share\n2,")


def test_code_is_seen_while_the_model_still_writes_it_and_while_it_runs(visit: NewVisit) -> None:
    midway = threading.Event()
    here = visit(
        view="chat", models={"m": [code("first = 1\nsecond = 2\n" * 9 + GATED, piece=8, wait_midway=midway), "Done."]}
    )
    here.ask("Go.")
    call = here.page.get_by_role("region", name="Code")
    expect(call.locator("code")).to_contain_text("first = 1")
    expect(call.locator(".state")).to_contain_text("writing")
    assert "print" not in call.locator("code").inner_text()
    midway.set()
    expect(call.locator(".state")).to_contain_text("running")
    expect(call.locator(".outputs")).to_have_text("first\n")  # the code waits: its output is there before it ends
    gate(here)
    here.answered()
    expect(call.locator(".outputs")).to_have_text("first\nsecond")


@pytest.mark.docker
def test_after_a_reload_the_conversation_is_there_and_goes_on(visit_docker: NewVisit) -> None:
    replies = [*rolls(), code("print('sum is', int(counts.sum()))"), "Ten thousand."]
    here = visit_docker(view="chat", models={"a-model": ["Not asked."], "m": replies})
    here.page.get_by_label("Model").select_option("m")
    here.ask("Go.")
    here.answered()
    here.page.get_by_label("Question").fill("A draft")
    here.reload()
    here.answered()
    expect(here.page.locator(".question")).to_have_text("Go.")
    expect(here.page.locator(".prose")).to_contain_text("Seven comes up most")
    expect(here.page.get_by_alt_text("a figure that the code drew")).to_be_visible()
    expect(here.page.get_by_label("Question")).to_have_value("A draft")
    expect(here.page.get_by_label("Model")).to_have_value("m")
    here.ask("And in all?")
    here.answered(2)
    expect(here.page.get_by_role("region", name="Code").last).to_contain_text("sum is 10000")
    assert len(here.gateway.services.containers.running()) == 1


def test_a_reload_in_the_middle_loses_nothing(visit: NewVisit) -> None:
    here = visit(view="chat", models={"m": [code(GATED), "Both were printed."]})
    here.ask("Go.")
    state = here.page.locator(".call .state")
    expect(state).to_contain_text(re.compile(r"running [1-9]"))
    before = float(state.inner_text().split()[1])
    here.reload()
    expect(state).to_contain_text("running")
    assert float(state.inner_text().split()[1]) > before  # the clock goes on
    gate(here)
    here.answered()
    expect(here.page.locator(".call")).to_contain_text("first\nsecond")
    expect(here.page.locator(".prose")).to_have_text("Both were printed.")
    expect(here.page.locator(".answer")).to_have_count(1)


def test_a_connection_that_breaks_is_made_again(visit: NewVisit) -> None:
    here = visit(view="chat", models={"m": [code("print('ran')"), "Here."]})

    def cut(route: Route) -> None:
        whole = route.fetch()
        text = whole.text()
        route.fulfill(response=whole, body=text[: text.index("event: response.code_interpreter_call.completed")])

    here.page.route("**/v1/responses", cut)
    here.ask("Go.")
    here.answered()
    expect(here.page.locator(".call .outputs")).to_have_text("ran")
    expect(here.page.locator(".prose")).to_have_text("Here.")


@pytest.mark.parametrize("key", ["Escape", ""])
def test_a_response_is_stopped_and_the_conversation_goes_on(visit: NewVisit, key: str) -> None:
    here = visit(view="chat", models={"m": [code("print('on', flush=True)\nwhile True: pass"), "I was stopped."]})
    here.ask("Go.")
    expect(here.page.locator(".call .state")).to_contain_text("running")
    if key:
        here.page.evaluate("document.activeElement.blur()")  # Escape stops it wherever the focus is
        here.page.keyboard.press(key)
    else:
        here.page.get_by_role("button", name="Stop").click()
    expect(here.page.locator(".foot")).to_contain_text("stopped")
    expect(here.page.locator(".call .state")).to_contain_text("stopped")
    here.ask("What happened?")
    here.answered(2)
    expect(here.page.locator(".prose").last).to_have_text("I was stopped.")


def held_back(here: Visit, pattern: str | re.Pattern[str]) -> list[Route]:
    """Hold requests back until their routes go on."""
    held: list[Route] = []
    here.page.route(pattern, lambda route: held.append(route))
    return held


def test_what_is_typed_before_the_page_is_ready_is_asked(visit: NewVisit) -> None:
    here = visit(view="chat", models={"m": ["Hello."]})
    held = held_back(here, re.compile(r"/page\.(css|js)$"))
    here.page.reload(wait_until="commit")
    here.page.get_by_label("Question").fill("Early.")
    here.page.get_by_label("Python code").evaluate("area => (area.value = 'early = 1')")
    until(lambda: here.page.wait_for_timeout(10) or len(held) == 2)
    for each in held:
        each.continue_()
    here.page.get_by_role("button", name="Send").click()
    here.answered()
    expect(here.page.locator(".question")).to_have_text("Early.")
    expect(here.page.get_by_label("Python code")).to_have_value("early = 1")
    expect(here.page.locator("#coloured")).to_have_text("early = 1")
    here.page.unroute_all()
    here.reload()
    expect(here.page.get_by_label("Python code")).to_have_value("early = 1")


def test_a_question_waits_for_the_conversation_that_it_belongs_to(visit: NewVisit) -> None:
    here = visit(view="chat", models={"m": ["First.", "Second."]})
    here.ask("One.")
    here.answered()
    held = held_back(here, "**/v1/responses/resp_*include*")
    here.reload()
    here.page.get_by_label("Question").fill("Two.")
    expect(here.page.get_by_label("Model")).to_be_visible()
    until(lambda: here.page.wait_for_timeout(10) or held)
    expect(here.page.get_by_role("button", name="Send")).to_be_disabled()
    here.page.get_by_label("Question").press("Enter")
    held.pop().continue_()
    here.page.get_by_role("button", name="Send").click()
    here.answered(2)
    expect(here.page.locator(".question")).to_have_text(["One.", "Two."])


ENDLESS = "print('on', flush=True)\nwhile True: pass"


@pytest.mark.parametrize("then", ["wait", "New chat"])
def test_a_response_is_stopped_before_its_first_event(visit: NewVisit, then: str) -> None:
    here = visit(view="chat", models={"m": [code(ENDLESS), "I was stopped."]})
    held = held_back(here, "**/v1/responses")
    here.ask("Go.")
    here.page.get_by_role("button", name="Stop").click()
    if then == "New chat":
        here.page.get_by_role("button", name=then).click()
    else:
        expect(here.page.get_by_role("button", name="Stop")).to_be_disabled()
    until(lambda: here.page.wait_for_timeout(10) or held)
    held.pop().continue_()
    if then == "New chat":
        listed = f"{here.gateway.url}/page/responses"
        until(lambda: [each["status"] for each in httpx.get(listed).json()["responses"]] == ["cancelled"])
        expect(here.page.locator(".question")).to_have_count(0)
    else:
        expect(here.page.locator(".foot")).to_contain_text("stopped")
        expect(here.page.get_by_role("button", name="Send")).to_be_visible()


def test_a_new_chat_stays_one_while_another_is_still_read(visit: NewVisit) -> None:
    here = visit(view="responses", models={"m": ["Here."]})
    post(here.gateway, input="From a client.")
    here.page.get_by_role("button", name="Refresh").click()
    held = held_back(here, "**/v1/responses/*")
    here.page.get_by_role("button", name="Open ").click()
    here.page.get_by_role("button", name="New chat").click()
    until(lambda: here.page.wait_for_timeout(10) or held)
    with here.page.expect_response("**/v1/responses/*"):
        held.pop().continue_()
    here.page.wait_for_timeout(300)  # milliseconds: it is shown then, if ever
    expect(here.page.get_by_role("heading", name="What should be worked out?")).to_be_visible()
    expect(here.page.locator(".question")).to_have_count(0)


def test_a_file_goes_with_the_question_and_another_into_the_container(visit: NewVisit) -> None:
    here = visit(view="chat", models={"m": [code("print(open('a.txt').read(), open('b.txt').read())"), "Read."]})
    page = here.page
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Attach files").click()
    chooser.value.set_files({"name": "a.txt", "mimeType": "text/plain", "buffer": b"from the question"})
    expect(page.locator("#attachments")).to_contain_text("a.txt · 17 bytes")
    page.locator("#chosen-files").set_input_files({"name": "b.txt", "mimeType": "text/plain", "buffer": b"by hand"})
    expect(page.locator("#files")).to_contain_text("b.txt")
    here.ask("Read both.")
    here.answered()
    expect(page.locator(".call .outputs")).to_have_text("from the question by hand")
    expect(page.locator(".question")).to_contain_text("a.txt")
    expect(page.locator("#attachments .chip")).to_have_count(0)
    page.get_by_role("button", name="Delete b.txt").click()
    expect(page.locator("#files li")).to_have_count(1)


def test_a_model_that_fails_is_told_and_can_be_asked_again(visit: NewVisit) -> None:
    here = visit(view="chat", models={"m": [ScriptedReply(status=400, error="The context is full."), "Better."]})
    here.ask("Go.")
    expect(here.page.get_by_role("alert")).to_contain_text("The context is full.")
    here.ask("Again.")
    expect(here.page.locator(".prose")).to_have_text("Better.")


def test_an_upstream_that_is_away_is_told_and_code_runs_all_the_same(visit: NewVisit) -> None:
    here = visit({"upstream": "http://127.0.0.1:9/v1"}, view="chat")
    words = "No model to talk to: the upstream does not answer. Start it, or check the URL: it usually ends in /v1."
    expect(here.page.locator("#notice")).to_contain_text(words)
    expect(here.page.locator("#health")).to_have_text("no upstream")
    expect(here.page.get_by_role("button", name="Send")).to_be_disabled()
    here.page.get_by_role("link", name="Code").click()
    here.run("6 * 7")
    here.ends("Done in")
    assert here.complaints  # the browser tells of the answer that was no success
    here.complaints.clear()


def test_nothing_that_a_model_says_becomes_markup(visit: NewVisit) -> None:
    text = (
        f"{MARKUP}\n\n# {MARKUP}\n\n* {MARKUP}\n\n| a | b |\n|---|---|\n| {MARKUP} | x |\n\n```html\n{MARKUP}\n```\n\n"
        f"**{MARKUP}** [click](javascript:alert(1)) [there](https://example.org) ![x](https://example.org/x.png)"
    )
    name = f"m{MARKUP}"
    here = visit(view="chat", models={name: [code(f"print({MARKUP!r})", reasoning=MARKUP), text]})
    here.ask(MARKUP)
    here.answered()
    for place in (
        ".question",
        ".thinking",
        ".call pre",
        ".call .outputs",
        ".prose h3",
        ".prose li",
        ".prose td",
        ".prose pre",
    ):
        expect(here.page.locator(place).first).to_contain_text("<img src=x onerror=")
    assert here.page.locator("#transcript img, #transcript a, #transcript script, #transcript iframe").count() == 0
    said = "[click](javascript:alert(1)) there https://example.org x https://example.org/x.png"
    expect(here.page.locator(".prose")).to_contain_text(said)
    for view in ("Responses", "Connect"):
        here.page.get_by_role("link", name=view).click()
        expect(here.page.locator(f"section[data-view={view.lower()}]")).to_contain_text("m<img src=x")
    assert here.page.locator("script").count() == 1
    assert here.page.title() == "agent_tools gateway"


def test_a_clients_response_is_listed_and_gone_on_from(visit: NewVisit, artefacts: Path) -> None:
    here = visit(view="responses", models={"m": [code("x = 41"), "Set.", code("x + 1"), "42."]})
    expect(here.page.locator("#recent")).to_contain_text("None yet")
    id_ = post(here.gateway, input="From a client.", include=["code_interpreter_call.outputs"]).json()["id"]
    here.page.get_by_role("button", name="Refresh").click()
    row = here.page.locator("#recent tbody tr")
    cells = ["just now", "From a client.", "m", "completed", "1", "20", "10", re.compile(r"\d+ s"), "Open"]
    expect(row.get_by_role("cell")).to_have_text(cells)
    here.page.screenshot(path=artefacts / "page-responses.png")
    here.page.get_by_role("button", name=f"Open {id_}").click()
    expect(here.page.locator(".question")).to_have_text("From a client.")
    here.ask("Go on.")
    here.answered(2)
    expect(here.page.locator(".call .outputs").last).to_have_text("42")


def test_a_key_and_what_was_said_are_not_kept_by_the_browser(visit: NewVisit) -> None:
    here = visit({"api_keys": (KEY,)}, view="chat", models={"m": ["The secret answer."]})
    unlock(here.page)
    here.ask("A secret question.")
    here.answered()
    kept = here.page.evaluate(
        "JSON.stringify([{...sessionStorage}, {...localStorage}, document.cookie, location.href])"
    )
    assert "resp_" in kept
    assert KEY not in kept
    assert "secret" not in kept
    here.reload()
    expect(here.page.get_by_label("Question")).to_be_hidden()
    assert "secret" not in here.page.content()
    unlock(here.page)
    expect(here.page.locator(".prose")).to_have_text("The secret answer.")


def test_a_user_signs_in_and_the_browser_keeps_no_token(visit: NewVisit) -> None:
    with IdentityProvider() as provider:
        settings = {**provider.settings, "oidc_client_id": "page"}
        here = visit(settings, view="chat", models={"m": ["Hello, Ann."]}, others=(provider.issuer,))
        here.page.get_by_role("button", name="Sign in").click()
        here.ask("Who am I?")
        here.answered()
        assert here.page.url == f"{here.gateway.url}/"
        kept = here.page.evaluate("JSON.stringify([{...sessionStorage}, {...localStorage}, document.cookie])")
        assert provider.token().split(".")[0] not in kept
        assert provider.asked["code_challenge_method"] == "S256"
        for address in ("?code=x&state=y", f"?code=x&state={provider.asked['state']}"):
            here.page.goto(f"{here.gateway.url}/{address}")  # a sign-in that was not begun here
            expect(here.page.get_by_role("button", name="Sign in")).to_be_visible()
        assert [each.target for each in provider.seen].count("/token") == 1


@pytest.mark.docker
def test_below_a_path_of_a_proxy_all_works(visit_docker: NewVisit) -> None:
    here = visit_docker({"root_path": "/code"}, view="chat", models={"m": rolls()})
    here.ask("Go.")
    here.answered()
    expect(here.page.get_by_alt_text("a figure that the code drew")).to_be_visible()
    here.page.get_by_role("link", name="Connect").click()
    expect(here.page.locator("#base-url")).to_have_text(f"{here.gateway.url}/code/v1")


@pytest.mark.docker
def test_figures_at_the_gateway_are_shown_and_enlarged(visit_docker: NewVisit) -> None:
    here = visit_docker({"image_urls": "content"}, view="chat", models={"m": rolls()}, **DESKTOP)
    here.ask("Go.")
    here.answered()
    figure = here.page.get_by_alt_text("a figure that the code drew")
    expect(figure).to_have_attribute("src", re.compile("^data:image/png;base64,"))
    figure.click()
    large = here.page.get_by_role("dialog", name="Figure")
    assert large.get_by_role("img").evaluate("image => image.naturalWidth") > 300
    with here.page.expect_download() as saved:
        large.get_by_role("button", name="Save").click()
    assert saved.value.path().read_bytes().startswith(b"\x89PNG")
    here.page.keyboard.press("Escape")
    expect(large).to_be_hidden()


def test_an_answer_is_saved_as_a_notebook(visit: NewVisit) -> None:
    here = visit(view="chat", models={"m": [code("print('rolled')"), "Done."]})
    here.ask("Roll the dice.")
    here.answered()
    with here.page.expect_download() as saved:
        here.page.get_by_role("button", name="Save as notebook").click()
    notebook = nbformat.read(saved.value.path(), as_version=4)
    nbformat.validate(notebook)
    assert [cell.source for cell in notebook.cells] == [
        "**User:** Roll the dice.",
        "print('rolled')",
        "**Assistant:** Done.",
    ]
    assert notebook.cells[1].outputs[0].text == "rolled\n"


def test_a_file_that_a_model_only_names_is_told_to_be_missing(visit: NewVisit) -> None:
    said = "See [it](sandbox:/mnt/data/last.txt) and [that](sandbox:/mnt/data/none.txt)."
    many = "for n in range(101): open(f'{n}.txt', 'w').close()"
    here = visit(view="chat", models={"m": [code("open('last.txt', 'w').write('here')\n" + many), said]})
    here.ask("Go.")
    here.answered()
    with here.page.expect_download() as saved:
        here.page.get_by_role("button", name="it", exact=True).click()
    assert saved.value.path().read_text() == "here"
    here.page.get_by_role("button", name="that", exact=True).click()
    expect(here.page.locator("#files-state")).to_have_text("/mnt/data/none.txt: there is no such file")


def test_a_new_chat_has_a_container_of_its_own(visit: NewVisit) -> None:
    here = visit(view="chat", models={"m": [code("x = 1"), "One.", code("print('x' in globals())"), "New."]})
    here.ask("Go.")
    here.answered()
    here.page.get_by_role("button", name="New chat").click()
    expect(here.page.get_by_role("heading", name="What should be worked out?")).to_be_visible()
    here.ask("Is it there?")
    here.answered()
    expect(here.page.locator(".call .outputs")).to_have_text("False")
    expect(here.page.locator("#containers li")).to_have_count(2)


def test_a_container_that_is_gone_is_told_and_replaced(visit: NewVisit) -> None:
    here = visit(view="code", models={"m": [code("print('x' in globals())"), "It is not."]})
    here.run("x = 1")
    here.ends("Done in")
    here.page.get_by_role("button", name="Delete container").click()
    expect(here.page.locator("#containers li")).to_have_count(0)
    here.page.get_by_role("link", name="Chat").click()
    here.ask("Is it there?")
    here.answered()
    expect(here.page.locator("#transcript .note")).to_contain_text("the code gets a new one")
    expect(here.page.locator(".call .outputs")).to_have_text("False")


def test_an_expired_container_is_told_and_takes_no_files(visit: NewVisit) -> None:
    answers = [code("open('a.txt', 'w').close()"), "Made.", code("import os; print(os.listdir())"), "Listed."]
    here = visit(view="chat", models={"m": answers})
    here.ask("Go.")
    here.answered()
    expect(here.page.locator("#files")).to_contain_text("a.txt")
    kept = here.gateway.services.containers
    kept.clock = lambda: time.time() + 3_600
    kept.sweep()
    sent = {"name": "b.txt", "mimeType": "text/plain", "buffer": b"new"}
    here.page.locator("#chosen-files").set_input_files(sent)
    expect(here.page.locator("#files li")).to_have_count(1)
    expect(here.page.locator("#files")).to_contain_text("b.txt")
    expect(here.page.locator("#files-state")).to_contain_text("is gone, with its files and variables")
    here.ask("What is there?")
    here.answered(2)
    here.complaints[:] = [each for each in here.complaints if "400" not in each]  # the browser notes each refusal


def test_a_chat_says_that_its_variables_and_files_are_gone(visit: NewVisit) -> None:
    here = visit(view="chat", models={"m": [code("x = 1"), "One.", code("print('x' in globals())"), "Gone."]})
    here.ask("Go.")
    here.answered()
    kept = here.gateway.services.containers
    kept.clock = lambda: time.time() + 3_600
    kept.sweep()
    here.ask("Is it there?")
    here.answered(2)
    expect(here.page.locator("#transcript .note")).to_contain_text("without its variables and files")
    expect(here.page.locator(".call .outputs").last).to_have_text("False")
    here.complaints[:] = [each for each in here.complaints if "400" not in each]  # the browser notes each refusal


def test_of_a_long_conversation_the_newest_turns_are_shown(visit: NewVisit) -> None:
    here = visit(view="responses", models={"m": ["Yes."] * 51})
    previous = None
    for _ in range(51):
        previous = post(here.gateway, tools=[], previous_response_id=previous).json()["id"]
    here.page.get_by_role("button", name="Refresh").click()
    here.page.get_by_role("button", name=f"Open {previous}").click()
    expect(here.page.locator("#transcript .note")).to_have_text("Earlier turns are not shown.")
    here.answered(50)


def test_chat_and_code_share_a_container(visit: NewVisit) -> None:
    here = visit(view="code", models={"m": [code("x += 1; print(x)"), "Counted."]})
    here.run("x = 41")
    here.ends("Done in")
    here.page.get_by_role("link", name="Chat").click()
    here.ask("Count.")
    here.answered()
    expect(here.page.locator(".call .outputs")).to_have_text("42")


@pytest.mark.docker
def test_a_phone_shows_a_conversation_whole(visit_docker: NewVisit, artefacts: Path) -> None:
    here = visit_docker(view="chat", models={"m": [*rolls(), "A" * 300]}, **PHONE)
    assert is_shown_whole(here.page)
    here.ask("Q" * 300)
    here.answered()
    assert is_shown_whole(here.page)
    here.page.screenshot(path=artefacts / "page-chat-phone.png")
    for view in ("Responses", "Connect"):
        here.page.get_by_role("link", name=view).click()
        assert is_shown_whole(here.page)


@pytest.mark.parametrize("error", ["KeyError", "SystemExit"])
def test_code_that_raised_is_not_done(visit: NewVisit, error: str) -> None:
    here = visit(view="chat", models={"m": [code(f"print('a')\nraise {error}('b')"), "It failed."]})
    here.ask("Go.")
    here.answered()
    state = here.page.locator(".call .state")
    expect(state).to_contain_text(error)
    assert "done" not in state.inner_text()
    expect(here.page.locator(".call [data-kind=error]")).to_have_attribute("data-label", error)
    here.reload()
    here.answered()
    expect(here.page.locator(".call .state")).to_have_text(error)


@pytest.mark.docker
def test_the_end_stays_in_view_until_the_user_scrolls_up(visit_docker: NewVisit) -> None:
    going_on = threading.Event()
    talk = ["Words. " * 900, *rolls(), ScriptedReply(text="Line.\n\n" * 40, piece=40, wait_midway=going_on)]
    here = visit_docker(view="chat", models={"m": talk}, viewport={"width": 1280, "height": 800})
    bounds = "document.querySelector('{}').getBoundingClientRect()"
    gap = f"{bounds.format('#transcript')}.bottom - {bounds.format('#ask')}.top"
    here.ask("Talk.")
    here.answered()
    here.ask("Draw.")
    here.answered(2)
    expect(here.page.get_by_alt_text("a figure that the code drew")).to_be_visible()
    until(lambda: here.page.wait_for_timeout(20) or here.page.evaluate(gap) < 2)
    here.ask("Go on.")
    expect(here.page.locator(".prose").last).to_contain_text("Line.")
    here.page.mouse.wheel(0, -300)
    until(lambda: here.page.wait_for_timeout(20) or here.page.evaluate(gap) > 100)
    before = here.page.evaluate("scrollY")
    going_on.set()
    here.answered(3)
    assert here.page.evaluate("scrollY") == before


def test_a_question_is_changed_or_asked_again_and_what_followed_is_gone(visit: NewVisit) -> None:
    replies = [code("x = 1"), "One.", "Two.", "Two again.", code("print('x' in globals())"), "Changed."]
    here = visit(view="chat", models={"m": replies})
    here.ask("First.")
    here.answered()
    here.ask("Second.")
    here.answered(2)
    here.page.get_by_role("button", name="Again").last.click()
    expect(here.page.locator(".prose")).to_have_text(["One.", "Two again."])
    here.answered(2)
    here.page.locator(".question").first.hover()
    here.page.get_by_role("button", name="Edit").first.click()
    here.page.get_by_label("Changed question").fill("Another.")
    here.page.get_by_label("Changed question").press("Enter")
    here.answered()
    expect(here.page.locator(".question")).to_have_text(["Another."])
    expect(here.page.locator(".prose")).to_have_text(["Changed."])
    expect(here.page.locator(".call .outputs")).to_have_text("True")  # in the container of the conversation
    listed = f"{here.gateway.url}/page/responses"
    until(lambda: [each.get("question") for each in httpx.get(listed).json()["responses"]] == ["Another."])
    here.reload()
    here.answered()
    expect(here.page.locator(".question")).to_have_text(["Another."])


def test_chats_are_listed_by_their_first_words_renamed_and_deleted(visit: NewVisit) -> None:
    here = visit(view="chat", models={"m": [code("open('a.txt', 'w').write('a')"), "One.", "Two.", "Three."]})
    here.ask("How many apples are there?")
    here.answered()
    here.page.get_by_role("button", name="New chat").click()
    here.ask("Are pears cheaper?")
    here.answered()
    chats = here.page.locator("#chats .name")
    expect(chats).to_have_text(["Are pears cheaper?", "How many apples are there?"])
    here.page.get_by_role("link", name="Code").click()
    chats.nth(1).click()  # from any view
    expect(here.page.locator(".question")).to_have_text(["How many apples are there?"])
    expect(here.page.locator("#files")).to_contain_text("a.txt")
    here.ask("And now?")
    here.answered(2)
    expect(chats).to_have_text(["How many apples are there?", "Are pears cheaper?"])
    here.page.get_by_role("button", name="Rename How many").click()
    here.page.get_by_label("Title").fill("Apples")
    here.page.get_by_label("Title").press("Enter")
    expect(chats).to_have_text(["Apples", "Are pears cheaper?"])
    here.reload()
    expect(chats).to_have_text(["Apples", "Are pears cheaper?"])
    expect(here.page.locator("#containers .name")).to_have_text(["this page"])
    here.page.get_by_role("button", name="Delete chat Apples").click()
    here.page.get_by_role("button", name="Delete", exact=True).click()
    expect(chats).to_have_text(["Are pears cheaper?"])
    expect(here.page.get_by_role("heading", name="What should be worked out?")).to_be_visible()
    expect(here.page.locator("#containers li")).to_have_count(0)
    questions = [each["question"] for each in httpx.get(f"{here.gateway.url}/page/responses").json()["responses"]]
    assert questions == ["Are pears cheaper?"]


def test_uploads_go_with_the_chat_or_the_question_that_they_were_for(visit: NewVisit) -> None:
    here = visit(view="chat", models={"m": lambda _: ScriptedReply(text="Read.")})
    for number, name in enumerate(("a.txt", "b.txt"), 1):
        data = {"name": name, "mimeType": "text/plain", "buffer": b"x"}
        here.page.locator("#attached-files").set_input_files(data)
        expect(here.page.locator("#attachments")).to_contain_text(name)
        here.ask("Read it.")
        here.answered(number)

    def uploads() -> list[str]:
        return [each["filename"] for each in httpx.get(f"{here.gateway.url}/v1/files?order=asc").json()["data"]]

    assert uploads() == ["a.txt", "b.txt"]
    here.page.get_by_role("button", name="Again").first.click()
    until(lambda: here.page.wait_for_timeout(10) or uploads() == ["a.txt"])
    here.answered()
    here.page.get_by_role("button", name="Delete chat").click()
    here.page.get_by_role("button", name="Delete", exact=True).click()
    until(lambda: here.page.wait_for_timeout(10) or not uploads())


def test_a_chat_is_deleted_with_the_container_of_a_file_that_no_code_read(visit: NewVisit) -> None:
    here = visit(view="chat", models={"m": ["Read."]})
    data = {"name": "a.txt", "mimeType": "text/plain", "buffer": b"x"}
    here.page.locator("#attached-files").set_input_files(data)
    expect(here.page.locator("#attachments")).to_contain_text("a.txt")
    here.ask("Read it.")
    here.answered()
    containers = here.gateway.services.containers
    assert len(containers.all_of("local")) == 1
    here.page.get_by_role("button", name="Delete chat").click()
    here.page.get_by_role("button", name="Delete", exact=True).click()
    until(lambda: here.page.wait_for_timeout(10) or not containers.all_of("local"))


def test_a_system_prompt_and_a_temperature_go_with_the_question(visit: NewVisit) -> None:
    here = visit(view="chat", models={"m": ["Arr."]})
    here.page.get_by_role("button", name="Settings").click()
    here.page.get_by_label("System prompt").fill("Talk like a pirate.")
    here.page.get_by_label("Temperature").fill("0.3")
    here.ask("Hello.")
    here.answered()
    (sent,) = here.gateway.upstream.requests
    assert sent["temperature"] == 0.3
    assert "Talk like a pirate." in str(sent["messages"][0])


def test_a_file_is_dropped_on_the_question(visit: NewVisit) -> None:
    here = visit(view="chat", models={"m": [code("print(open('a.txt').read())"), "Read."]})
    here.page.evaluate(
        "const data = new DataTransfer(); data.items.add(new File(['dropped'], 'a.txt', { type: 'text/plain' }));"
        "document.querySelector('#prompt').dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true }))"
    )
    expect(here.page.locator("#attachments")).to_contain_text("a.txt · 7 bytes")
    here.ask("Read it.")
    here.answered()
    expect(here.page.locator(".call .outputs")).to_have_text("dropped")


def gate(here: Visit) -> None:
    """Let code go on that waits for it, once its sandbox is there."""
    (id_,) = until(here.gateway.services.containers.running)
    here.gateway.services.containers.folder(id_).joinpath("gate").touch()


def unlock(page: Page) -> None:
    page.get_by_label("API key").fill(KEY)
    page.get_by_label("API key").press("Enter")


def test_a_new_chat_is_shown_from_its_top_on_a_phone(visit: NewVisit) -> None:
    here = visit(view="chat", models={"m": ["One.\n\n" * 40]}, **PHONE)
    title = here.page.get_by_role("heading", name="What should be worked out?")
    expect(title).to_be_in_viewport(ratio=1)
    assert here.page.evaluate("scrollY") == 0
    here.ask("Go.")
    here.answered()
    assert here.page.evaluate("scrollY") > 0
    here.page.get_by_role("button", name="New chat").click()
    expect(title).to_be_in_viewport(ratio=1)
    assert here.page.evaluate("scrollY") == 0
