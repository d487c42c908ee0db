"""Open WebUI in Chromium, unchanged, before the gateway: two users, chats, tools, panel, notebook, shell."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
SERVERS = json.loads(sys.argv[1])
PICTURES = Path(sys.argv[2])
BASE = SERVERS["webui"]
TERMINAL = {"url": f"{SERVERS['gateway']}/terminal", "key": SERVERS["key"], "auth_type": "bearer"}
CELL = "import sys; print('in the notebook', 'x' in globals())"
NOTEBOOK = {
    "cells": [
        {"cell_type": "code", "source": CELL, "outputs": [], "execution_count": None, "metadata": {}, "id": "c1"}
    ],
    "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}
CODE = f"""x = 20
import matplotlib.pyplot as plt
plt.plot([3, 1, 2]); plt.savefig('plot.png'); plt.show()
open('note.ipynb', 'w').write({json.dumps(NOTEBOOK)!r})
open('page.html', 'w').write('<h1>hi</h1><script>document.title = localStorage.token</script>')
x + 1"""
failures: list[str] = []


def api(method: str, path: str, token: str = "", body: Any = None) -> tuple[int, Any]:
    """Ask Open WebUI's API."""
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {token}"} if token else {})}
    data = None if body is None else json.dumps(body).encode()
    try:
        answer = urllib.request.urlopen(urllib.request.Request(BASE + path, data, headers, method=method), timeout=120)
    except urllib.error.HTTPError as exc:
        answer = exc  # type: ignore[assignment]
    text = answer.read()
    try:
        return answer.status, json.loads(text)
    except ValueError:
        return answer.status, text.decode("utf-8", "replace")


def expect(what: str, is_so: object, seen: object = "") -> None:
    """Note whether something is as it is to be."""
    print("ok  " if is_so else "FAIL", what, str(seen)[:400] if not is_so else "", flush=True)
    if not is_so:
        failures.append(what)


def user(name: str, admin: str = "") -> str:
    """Make a user; return the token."""
    account = {"name": name, "email": f"{name}@example.org", "password": "pw-123456", "role": "user"}
    if admin:
        api("POST", "/api/v1/auths/add", admin, account)
        return str(api("POST", "/api/v1/auths/signin", body=account)[1]["token"])
    return str(api("POST", "/api/v1/auths/signup", body=account)[1]["token"])


def settings(admin: str) -> None:
    """Do as an admin does in the dialog of the connection."""
    verified = api("POST", "/api/v1/configs/terminal_servers/verify", admin, TERMINAL)
    expect("the connection is verified as an orchestrator", "orchestrator" in json.dumps(verified), verified)
    wrong = api("POST", "/api/v1/configs/terminal_servers/verify", admin, {**TERMINAL, "key": "wrong-key"})
    expect("a wrong key is not verified", wrong[0] != 200 or not wrong[1].get("status"), wrong)
    policy = {"cpu_limit": "1", "memory_limit": "1Gi", "idle_timeout_minutes": 30}
    for path, more in (("policy", {"policy_data": policy}), ("lifecycle", {"lifecycle_data": {}})):
        saved = api(
            "POST", f"/api/v1/configs/terminal_servers/{path}", admin, {**TERMINAL, "policy_id": "team", **more}
        )
        expect(f"the dialog saves its {path}", saved[0] == 200, saved)


class Session:
    """A user's browser."""

    def __init__(self, browser: Browser, name: str, token: str) -> None:
        self.name = name
        self.errors: list[str] = []
        self.page: Page = browser.new_context(viewport={"width": 1500, "height": 950}).new_page()
        self.page.on("pageerror", lambda exc: self.errors.append(str(exc)[:200]))
        self.page.goto(BASE, wait_until="domcontentloaded")
        self.page.evaluate("token => { localStorage.token = token; localStorage.selectedTerminalId = 'sealed' }", token)
        self.page.goto(f"{BASE}/?models=scripted", wait_until="load")
        self.page.wait_for_selector("#chat-input", timeout=60_000)
        time.sleep(2)
        for button in ("Okay, Let's Go!", "Close"):
            if self.page.get_by_role("button", name=button).count():
                self.page.get_by_role("button", name=button).first.click(timeout=2_000)

    def does(self, what: str, work: Callable[[], object]) -> None:
        """Do something, and take a picture."""
        try:
            work()
            expect(f"{self.name}: {what}", True)
        except Exception as exc:
            expect(f"{self.name}: {what}", False, repr(exc))
        self.page.screenshot(path=PICTURES / f"openwebui-{self.name}-{what.replace(' ', '-')}.png")

    def sends(self, text: str, until: str) -> None:
        """Send a message, and wait for a text."""
        self.page.locator("#chat-input").click()
        self.page.keyboard.insert_text(text)
        self.page.keyboard.press("Enter")
        self.shows(until, 90_000)

    def shows(self, text: str, milliseconds: float = 90_000) -> None:
        """Wait for a text on the page."""
        self.page.wait_for_function("text => document.body.innerText.includes(text)", arg=text, timeout=milliseconds)

    def types_into_the_shell(self) -> None:
        """Type into the terminal of the panel."""
        self.page.get_by_label("Expand terminal").first.click(timeout=8_000)
        self.page.locator(".xterm-helper-textarea").first.wait_for(timeout=30_000)
        time.sleep(2)
        self.page.locator(".xterm-helper-textarea").first.focus()
        self.page.keyboard.type("echo ter$((40+2))minal; stty size; pwd\r")
        self.shows("ter42minal")

    def uploads(self) -> None:
        """Upload a file in the panel."""
        if self.page.get_by_label("Back").count():
            self.page.get_by_label("Back").first.click(timeout=5_000)
        time.sleep(2)
        file: Any = {"name": "up load.csv", "mimeType": "text/csv", "buffer": b"a,b\n1,2\n"}
        self.page.locator("input[type=file]").last.set_input_files(file)
        self.shows("up load.csv")


def ann_works(session: Session) -> str:
    """Use everything; return the chat's id."""
    session.does("runs python", lambda: session.sends(f"CALL run_python {json.dumps({'code': CODE})}", "DONE"))
    chat = session.page.url.rsplit("/", 1)[-1]
    command = (
        'next CALL run_command {"command": "ls; python3 -c \'print(6*7)\'"}\nCALL display_file {"path": "note.ipynb"}'
    )
    session.does("runs a command and shows a file", lambda: session.sends(command, "display_file"))
    session.does("sees the notebook", lambda: session.page.get_by_text("Run All").first.click(timeout=20_000))
    session.does("sees its output", lambda: session.shows("in the notebook False"))
    session.does("types into the shell", session.types_into_the_shell)
    session.does("has the model read the shell", lambda: session.sends("CALL read_user_terminal {}", "ter42minal"))
    typing = 'now CALL send_user_terminal_input {"input": "echo mo$((1+1))del\\n"}'
    session.does("has the model type", lambda: (session.sends(typing, "send_user"), session.shows("mo2del")))
    session.does("uploads a file", session.uploads)
    return chat


def apart(ann: str, bob: str, chat: str) -> None:
    """Check that each user has files of their own, also with the other's chat id."""

    def listed(token: str, path: str) -> set[str]:
        found = api("GET", f"/api/v1/terminals/sealed{path}/files/list?directory=/workspace", token)[1]
        return {each["name"] for each in found.get("entries", ())} if isinstance(found, dict) else set()

    expect("ann sees the files of her chat", "plot.png" in listed(ann, f"/chats/{chat}"), listed(ann, f"/chats/{chat}"))
    expect("bob sees none of them by her chat's id", not listed(bob, f"/chats/{chat}"))
    expect("another chat of ann's has none", not listed(ann, "/chats/11111111-1111-4111-8111-111111111111"))
    with open(SERVERS["log"]) as log:
        text = log.read()
    expect("the model saw the figure as a picture", "image_url" in text)
    request = urllib.request.Request(
        f"{BASE}/api/v1/terminals/sealed/chats/{chat}/files/serve/workspace/page.html",
        headers={"authorization": f"Bearer {ann}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        policy = answer.headers.get("content-security-policy", "")
    expect("HTML of the model gets no origin", policy.startswith("sandbox") and "same-origin" not in policy, policy)


def main() -> int:
    """Run it all; return the number of what failed."""
    PICTURES.mkdir(exist_ok=True)
    admin = user("admin")
    ann, bob = user("ann", admin), user("bob", admin)
    settings(admin)
    chromium = subprocess.run([ROOT / "scripts/lib/browser"], check=True, capture_output=True, text=True).stdout.strip()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        session = Session(browser, "ann", ann)
        chat = ann_works(session)
        other = Session(browser, "bob", bob)
        looks = 'CALL run_python {"code": "import os; sorted(os.listdir()), \'x\' in globals()"}'
        other.does("finds an empty container", lambda: other.sends(looks, "([], False)"))
        other.page.goto(f"{BASE}/?models=scripted", wait_until="load")
        other.page.wait_for_selector("#chat-input", timeout=60_000)
        asked = "Plot the sales of both regions by quarter."
        other.does("asks for a figure", lambda: (other.sends(asked, "passed the south"), time.sleep(4)))
        other.does("has a shell beside it", other.types_into_the_shell)
        apart(ann, bob, chat)
        for each in (session, other):
            expect(f"{each.name}: the page has no errors", not each.errors, each.errors)
        browser.close()
    print(f"{len(failures)} failed", flush=True)
    return len(failures)


if __name__ == "__main__":
    sys.exit(main())
