"""A real Chromium, and pages in it that must never complain."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Error, Page, Request, expect, sync_playwright

from agent_tools.runtime.runtime import Runtime
from supply.figures import NAME, bring
from tests.gateway.conftest import Gateway, NewGateway, new_gateway, process_runtime

__all__ = ["new_gateway", "process_runtime"]

ROOT = Path(__file__).resolve().parents[2]
NETWORK_CHANGED = "ERR_NETWORK_CHANGED"
"""Chromium drops what it loads when an interface comes or goes, as with any container beside the tests."""
STILL: dict[str, Any] = {"reduced_motion": "reduce"}
"""What turns on a page while it waits is drawn anew 60 times a second, without a graphics card on the tests' cores."""
PATIENCE = 60_000  # milliseconds until what a page should show counts as missing


class Visit:
    """A page of a gateway that someone looks at, at one of its views, and what its browser complained of."""

    def __init__(
        self, context: BrowserContext, gateway: Gateway, view: str, root: str = "", others: tuple[str, ...] = ()
    ) -> None:
        self.gateway = gateway
        self.complaints: list[str] = []
        self.page = context.new_page()
        self.page.on("console", lambda said: said.type in ("error", "warning") and self._note(said.text))
        self.page.on("pageerror", lambda error: self._note(str(error)))
        self.page.on("requestfailed", self._failed)
        self.page.on(
            "request",
            lambda request: request.url.startswith((gateway.url, "data:", "blob:", *others)) or self._note(request.url),
        )
        self.page.on("dialog", lambda dialog: self._note(f"dialog: {dialog.message}"))
        self._open(f"{gateway.url}{root}/#{view}", self.page.goto)

    def reload(self) -> None:
        """Load the page again."""
        self._open(self.page.url, lambda _: self.page.reload())

    def _open(self, url: str, load: Callable[[str], object]) -> None:
        """Load the page, and again if a network interface came or went."""
        while True:
            try:
                load(url)
            except Error as exc:
                self._note(str(exc))
            if not any(NETWORK_CHANGED in complaint for complaint in self.complaints):
                return
            self.complaints.clear()
            self.page.goto("about:blank")
            load = self.page.goto

    def _failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # of a page that was left, or a download
            self._note(f"{request.url}: {request.failure}")

    def _note(self, complaint: str) -> None:
        self.complaints.append(complaint)

    def run(self, code: str) -> None:
        """Type code in and press Run."""
        self.page.get_by_label("Python code").fill(code)
        self.page.get_by_role("button", name="Run", exact=True).click()

    def ends(self, words: str) -> None:
        """See that the run ended, and how."""
        expect(self.page.locator("#state")).to_contain_text(words)

    def ask(self, text: str) -> None:
        """Ask the model that is chosen."""
        self.page.get_by_label("Question").fill(text)
        self.page.get_by_role("button", name="Send").click()

    def answered(self, number: int = 1) -> None:
        """See that so many questions have their whole answers; if not, say what the page shows."""
        try:
            expect(self.page.locator(".foot", has_text="tokens")).to_have_count(number)
        except AssertionError as exc:
            shown = self.page.locator("#transcript").inner_text()
            raise AssertionError(f"the page shows {shown!r}; its browser complains of {self.complaints}") from exc


NewVisit = Callable[..., Visit]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = (
        os.environ.get("CHROMIUM") or subprocess.check_output([ROOT / "scripts" / "lib" / "browser"], text=True).strip()
    )
    arguments = ["--disable-gpu", *(["--no-sandbox"] if os.getuid() == 0 else [])]
    with sync_playwright() as playwright:
        expect.set_options(timeout=PATIENCE)
        with playwright.chromium.launch(executable_path=path, args=arguments) as browser:
            yield browser


@pytest.fixture
def visit(chromium: Browser, new_gateway: NewGateway, process_runtime: Runtime) -> Iterator[NewVisit]:
    """Opens the page of a gateway; at the end, its browser must have had nothing to complain of."""
    yield from _visits(chromium, new_gateway, process_runtime)


@pytest.fixture
def visit_docker(chromium: Browser, new_gateway: NewGateway, docker_runtime: Runtime) -> Iterator[NewVisit]:
    """The same on real sandboxes, whose image has matplotlib."""
    yield from _visits(chromium, new_gateway, docker_runtime)


def _visits(chromium: Browser, new_gateway: NewGateway, runtime: Runtime) -> Iterator[NewVisit]:
    visits: list[Visit] = []
    with ExitStack() as stack:

        def make(
            gateway_options: dict[str, Any] | None = None,
            view: str = "code",
            models: dict[str, Any] | None = None,
            others: tuple[str, ...] = (),
            **context_options: Any,
        ) -> Visit:
            options = gateway_options or {}
            gateway = new_gateway(models or {}, runtime, **options)
            context = stack.enter_context(chromium.new_context(**STILL, **context_options))
            visits.append(Visit(context, gateway, view, options.get("root_path", ""), others))
            return visits[-1]

        yield make
        complaints = [complaint for visit in visits for complaint in visit.complaints]
    assert complaints == []


@pytest.fixture(scope="session")
def artefacts() -> Path:
    """Return the folder in which pictures of the page are kept for people to look at."""
    folder = ROOT / "tests" / "artefacts"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def libraries() -> Path:
    """Return the folder of the libraries, which npm fetches the first time."""
    folder = ROOT / ".venv" / "figures"
    package = folder / NAME
    return package if (package / "vega-interpreter.js").exists() else bring(folder)


def is_shown_whole(page: Page) -> bool:
    """Return whether nothing of a page lies beyond its right edge."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))
