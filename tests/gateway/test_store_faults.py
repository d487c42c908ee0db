"""A database that is locked, full or gone: every answer has its end, and says what was not kept."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from agent_tools.gateway.conversations.recognised import RecognisedConversations
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import (
    EXECUTE,
    INCLUDE,
    ask,
    chunks,
    code,
    events_of,
    has_ended,
    is_idle,
    outputs,
    post,
    retrieve,
    run,
    stream,
    until,
)
from tests.gateway.conftest import Gateway, NewGateway

LONG = "x" * 300_000  # an answer for which a full database has no page
Fault = Callable[[Path], None]


class Faults:
    """What befalls a database; `mend` ends it."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    def locked(self, path: Path) -> None:
        """Another process writes, and does not end."""
        other = self._stack.enter_context(contextlib.closing(sqlite3.connect(path, check_same_thread=False)))
        other.execute("BEGIN IMMEDIATE")

    def full(self, path: Path) -> None:
        """The disk has no room for another page."""
        sa.event.listen(sa.pool.Pool, "checkout", _no_more_pages)
        self._stack.callback(sa.event.remove, sa.pool.Pool, "checkout", _no_more_pages)

    def gone(self, path: Path) -> None:
        """Someone has taken its tables away."""
        with contextlib.closing(sqlite3.connect(path)) as database:
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                database.execute(f"ALTER TABLE {name} RENAME TO lost_{name}")

    def mend(self) -> None:
        self._stack.close()


def _no_more_pages(connection: Any, *_: Any) -> None:
    connection.execute("PRAGMA max_page_count = 1")


@pytest.fixture
def faults() -> Iterator[Faults]:
    found = Faults()
    yield found
    found.mend()


KINDS = pytest.mark.parametrize("kind", ["locked", "full", "gone"])


def failing(new_gateway: NewGateway, befall: Fault, *before: Any, last: str = LONG) -> Gateway:
    """A gateway whose database fails while its model is asked for the last time."""
    gateways: list[Gateway] = []

    def end(_: Any) -> ScriptedReply:
        befall(gateways[0].services.config.data_dir / "gateway.db")
        return ScriptedReply(text=last)

    script = [*before, end]

    def reply(request: Any) -> ScriptedReply:
        each = script.pop(0)
        return each(request) if callable(each) else each

    gateways.append(new_gateway({"m": reply}, database_timeout=0.05, router_tools=("execute_python",)))
    return gateways[0]


def store_failures(gateway: Gateway) -> float:
    lines = httpx.get(f"{gateway.url}/metrics").text.splitlines()
    (value,) = [line.split()[1] for line in lines if line.startswith("agent_tools_store_failures_total ")]
    return float(value)


@KINDS
@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_response_ends_and_says_that_it_is_not_stored(
    new_gateway: NewGateway, faults: Faults, kind: str, is_streamed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    link = f"{LONG} [a file](sandbox:/mnt/data/a.txt)."  # which is looked for in the database
    before = code("open('a.txt', 'w').write('a'); print(6 * 7)")
    gateway = failing(new_gateway, getattr(faults, kind), before, last=link)
    body = stream(gateway, include=INCLUDE)[-1]["response"] if is_streamed else post(gateway, include=INCLUDE).json()
    assert (body["status"], body["store"]) == ("completed", False)
    assert "42" in str(outputs(body)[0]["outputs"])
    assert body["output"][-1]["content"][0]["text"] == link
    until(lambda: is_idle(gateway))
    assert store_failures(gateway) > 0
    assert "the database failed" in caplog.text
    assert "could not be stored" in caplog.text
    faults.mend()
    if kind != "gone":
        assert retrieve(gateway, body["id"]).status_code == 404


@KINDS
def test_one_in_the_background_has_failed_as_soon_as_the_database_is_back(
    new_gateway: NewGateway, faults: Faults, kind: str
) -> None:
    gateway = failing(new_gateway, getattr(faults, kind))
    events = stream(gateway, tools=[], background=True)
    assert (events[-1]["type"], events[-1]["response"]["store"]) == ("response.completed", False)
    faults.mend()
    id_ = events[-1]["response"]["id"]
    if kind == "gone":
        answer = retrieve(gateway, id_)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable")
        return
    body = until(lambda: has_ended(gateway, id_))
    assert (body["status"], body["output"]) == ("failed", [])
    assert "could not be stored" in body["error"]["message"]
    again = events_of(retrieve(gateway, id_, "?stream=true").text)
    assert [event["type"] for event in again] == ["response.failed"]


@pytest.mark.parametrize("kind", ["locked", "gone"])  # a full one has room for so short a row
@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_container_that_cannot_be_made_ends_the_answer_with_an_error(
    new_gateway: NewGateway, faults: Faults, kind: str, is_streamed: bool
) -> None:
    def first(_: Any) -> ScriptedReply:
        getattr(faults, kind)(gateway.services.config.data_dir / "gateway.db")
        return code("1")

    gateway = new_gateway({"m": first}, database_timeout=0.05)
    if is_streamed:
        events = stream(gateway)
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        assert (events[-2]["code"], events[-1]["response"]["status"]) == ("database_unavailable", "failed")
        assert "sqlite" not in str(events).lower()
        return
    answer = post(gateway)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable")
    assert "sqlite" not in answer.text.lower()


@KINDS
@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_completion_ends_as_it_should(
    new_gateway: NewGateway, faults: Faults, kind: str, is_streamed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = failing(new_gateway, getattr(faults, kind), run("print(6 * 7)"), last="It is 42.")
    answer = ask(gateway, stream=is_streamed, tools=[EXECUTE])
    assert answer.status_code == 200
    if is_streamed:
        choices = [choice for chunk in chunks(answer) for choice in chunk["choices"]]
        assert choices[-1]["finish_reason"] == "stop"
        assert "".join(choice["delta"].get("content", "") for choice in choices) == "It is 42."
    else:
        assert answer.json()["choices"][0]["message"]["content"] == "It is 42."
    until(lambda: is_idle(gateway))
    if kind != "full":  # what it writes last fits into the pages that are there
        assert store_failures(gateway) > 0
        assert "the database failed" in caplog.text


class Broken(RecognisedConversations):
    """Fails in a way that nobody expects."""

    def record(self, *_: Any) -> None:
        raise RuntimeError("never seen before")


@pytest.mark.parametrize("is_streamed", [True, False])
def test_whatever_else_fails_at_the_end_the_end_is_told(
    new_gateway: NewGateway, is_streamed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply(text="Ok.")})
    gateway.services.conversations = Broken(gateway.services.config, gateway.services.store)
    body = stream(gateway)[-1]["response"] if is_streamed else post(gateway).json()
    assert (body["status"], body["store"]) == ("completed", False)
    assert "could not be kept: RuntimeError" in caplog.text
    assert "never seen before" not in caplog.text
