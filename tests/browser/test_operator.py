"""The operator's view in a real browser: by keyboard, on a phone, in the dark, and with names that would be markup."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from agent_tools.containers.spec import ContainerSpec
from agent_tools.gateway.named_keys import KeyLimits, NamedKeys
from agent_tools.gateway.store.records import UsageRow
from tests.browser.conftest import STILL, Visit, is_shown_whole
from tests.browser.test_figures import serious
from tests.browser.test_page import MARKUP, PHONE
from tests.gateway.conftest import NewGateway

DESKTOP = {"viewport": {"width": 1280, "height": 1300}}


class Office:
    """A gateway on which users of several keys work, and the page of its operator."""

    def __init__(self, chromium: Browser, new_gateway: NewGateway, stack: ExitStack) -> None:
        self.gateway = new_gateway({}, named_keys=True)
        self.named = NamedKeys(self.gateway.services.store)
        self.chief = self.named.add("chief", KeyLimits(), operator=True)
        self.named.add("open-webui", KeyLimits(max_containers=200), for_users=True)
        self.named.add("students", KeyLimits(max_containers=2, max_requests_per_minute=60), group=MARKUP)
        alice = self.named.add("alice", KeyLimits())
        self.plain = alice
        self.named.read_into(self.gateway.services.keys)
        owner = self.named.find("alice").owner
        containers = self.gateway.services.containers
        for name in ("sales report", MARKUP):
            row = containers.create(owner, ContainerSpec(name, origin="response"))
            with containers.use(row.id) as (sandbox, _):
                sandbox.run_code("x = 1")
        failures = self.gateway.services.failures
        failures.record("429", "This key may send 60 requests in a minute; try again later.", "students", MARKUP)
        failures.record("died", "memory", "alice", container=row.id)
        numbers = {"runs": 1_204, "milliseconds": 5_000_000, "bytes_in": 10**6, "input_tokens": 88_000}
        day = time.strftime("%Y-%m-%d", time.gmtime())
        names = {"id": "1", "created_at": time.time(), "day": day, "owner": owner, "key_name": "students"}
        self.gateway.services.store.add(UsageRow(**names, user_name=MARKUP, **numbers))  # type: ignore[arg-type]
        self._chromium, self._stack = chromium, stack
        self.visits: list[Visit] = []

    def visit(self, key: str, **options: object) -> Visit:
        context = self._stack.enter_context(self._chromium.new_context(**STILL, **options))  # type: ignore[arg-type]
        here = Visit(context, self.gateway, "operator")
        here.page.get_by_label("API key").fill(key)
        here.page.get_by_label("API key").press("Enter")
        expect(here.page.get_by_label("API key")).to_be_hidden()
        self.visits.append(here)
        return here


@pytest.fixture
def office(chromium: Browser, new_gateway: NewGateway) -> Iterator[Office]:
    with ExitStack() as stack:
        made = Office(chromium, new_gateway, stack)
        yield made
        assert [complaint for visit in made.visits for complaint in visit.complaints] == []


def test_the_keyboard_stops_limits_and_revokes_and_names_are_no_markup(office: Office, artefacts: Path) -> None:
    page = office.visit(office.chief, **DESKTOP).page
    expect(page.locator("#running tbody tr")).to_have_count(2)
    expect(page.locator("#keys tbody tr")).to_have_count(4)
    expect(page.locator("#failures")).to_contain_text("sandbox ended")
    for place in ("#running", "#failures", "#keys", "#usage"):
        expect(page.locator(place)).to_contain_text("<img src=x onerror=")
    assert page.locator("main img, main script").count() == 0
    assert page.title() == "agent_tools gateway"
    page.screenshot(path=artefacts / "page-operator.png")
    row = page.locator("#running tbody tr", has_text="sales report")
    row.get_by_role("button", name="Stop").press("Enter")
    expect(row.get_by_role("button", name=re.compile("yes"))).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#running tbody tr")).to_have_count(1)
    assert len(office.gateway.services.containers.running()) == 1
    page.get_by_role("button", name="Limit alice").press("Enter")
    expect(page.get_by_label("Containers at once")).to_be_focused()
    page.keyboard.type("7")
    page.keyboard.press("Enter")
    expect(page.locator("#keys tr", has_text="alice")).to_contain_text("7")
    assert office.named.find("alice").max_containers == 7
    page.get_by_role("button", name="Limit alice").press("Enter")
    page.keyboard.press("Escape")
    expect(page.locator("#limits")).to_be_hidden()
    assert office.named.find("alice").max_containers == 7
    page.get_by_label("Find").fill("ali")
    page.get_by_label("Find").press("Enter")
    expect(page.locator("#keys tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Revoke alice").press("Enter")
    page.keyboard.press("Enter")
    expect(page.locator("#keys tr", has_text="alice")).to_contain_text("revoked")


def test_it_is_whole_on_a_phone_and_axe_finds_nothing_serious(office: Office, artefacts: Path) -> None:
    here = office.visit(office.chief, **PHONE)
    page = here.page
    expect(page.locator("#keys tbody tr")).to_have_count(4)
    page.get_by_role("button", name="Revoke open-webui").click()
    assert is_shown_whole(page)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert serious(page) == [], scheme
        page.screenshot(path=artefacts / f"page-operator-phone-{scheme}.png", full_page=True)
    page.get_by_role("button", name="Limit open-webui").click()
    expect(page.get_by_label("Containers at once")).to_have_value("200")
    assert serious(page) == []
    here.complaints.clear()  # axe's own


def test_a_key_that_is_no_operators_has_no_such_view(office: Office) -> None:
    here = office.visit(office.plain)
    expect(here.page.get_by_role("link", name="Connect")).to_be_visible()
    expect(here.page.get_by_text("online")).to_be_visible()
    expect(here.page.get_by_role("link", name="Operator")).to_be_hidden()
    expect(here.page.locator("#operator-problem")).to_contain_text("not an operator's")
    assert here.page.locator("#operator tbody tr").count() == 0
    assert all("403" in complaint for complaint in here.complaints)
    here.complaints.clear()
