"""The store, on SQLite and on PostgreSQL; and gateways on PostgreSQL."""

from __future__ import annotations

import contextlib
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import sqlalchemy as sa

from agent_tools.containers.failures import RowsAway
from agent_tools.containers.records import ContainerFile, ContainerRecord, Record, Upload
from agent_tools.containers.rows import MANY, Before
from agent_tools.gateway.store.records import StoredCall, StoredEvents, UsageRow
from agent_tools.gateway.store.store import Store, table_of
from tests.gateway.asking import INCLUDE, beside, code, events_of, has_ended, outputs, post, until
from tests.gateway.conftest import NewGateway
from tests.gateway.postgresql import postgresql

__all__ = ["postgresql"]


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, postgresql: str, work_dir: Path) -> Iterator[Store]:
    store = Store({"sqlite": f"sqlite:///{work_dir}/s.db", "postgresql": postgresql}[request.param])
    yield store
    for kind in (StoredCall, ContainerFile, Upload, StoredEvents, UsageRow):
        store.delete(kind)
    store.close()


def call(id_: str, created_at: float = 1.0, tool_answer: str = "x") -> StoredCall:
    return StoredCall(id=id_, owner="me", created_at=created_at, tool_answer=tool_answer)


def file(id_: str, path: str) -> ContainerFile:
    return ContainerFile(id=id_, container_id="c", created_at=1.0, path=path, source="user")


def upload(id_: str, size: int, owner: str = "me") -> Upload:
    return Upload(id=id_, owner=owner, created_at=1.0, filename="a", bytes=size, purpose="p")


@dataclass(frozen=True, kw_only=True)
class UploadSize(Record):
    """Some columns of an upload."""

    table = "uploads"
    owner: str
    bytes: int


def test_usage_adds_up_by_month_user_and_key(store: Store) -> None:
    def used(id_: str, day: str, user: str, **amounts: int) -> UsageRow:
        return UsageRow(id=id_, created_at=1.0, day=day, owner="o", key_name="k", user_name=user, **amounts)

    for _ in range(3):
        store.increase(used("1", "2026-11-01", "ann", runs=1, milliseconds=1_001), "runs", "milliseconds")
    store.increase(used("2", "2026-11-30", "ann", input_tokens=2**40), "input_tokens")
    store.increase(used("3", "2026-12-01", "ann", runs=9), "runs")
    store.increase(used("4", "2026-11-02", "bob", bytes_in=5), "bytes_in")
    nothing = dict.fromkeys(("runs", "bytes_in", "bytes_out", "input_tokens", "output_tokens"), 0)
    about = {"month": "2026-11", "key_name": "k", "owner": "o", **nothing}
    assert store.usage_of("2026-11") == [
        {**about, "user_name": "ann", "runs": 3, "seconds": 3.003, "input_tokens": 2**40},
        {**about, "user_name": "bob", "bytes_in": 5, "seconds": 0.0},
    ]


def test_records_of_several_tables_are_added_together_or_not_at_all(store: Store) -> None:
    store.add(call("c1"), call("c2"), file("f1", "a"))
    assert (store.count(StoredCall), store.count(ContainerFile)) == (2, 1)
    with pytest.raises(sa.exc.IntegrityError):
        store.add(call("c3"), file("f2", "a"))
    assert (store.count(StoredCall), store.count(ContainerFile)) == (2, 1)


@pytest.mark.parametrize("kind", Record.__subclasses__(), ids=lambda kind: kind.__name__)
def test_every_record_has_columns_of_its_table(kind: type[Record]) -> None:
    assert {field.name for field in fields(kind)} <= set(table_of(kind).c.keys())


def test_rows_are_added_found_changed_and_deleted(store: Store) -> None:
    for n in (2, 1):
        store.add(call(f"c{n}", n))
    assert [row.id for row in store.find(StoredCall, owner="me")] == ["c1", "c2"]
    assert store.change(StoredCall, "c1", tool_answer="y")
    assert not store.change(StoredCall, "c3", tool_answer="y")
    assert store.get(StoredCall, "c1") == call("c1", 1, "y")
    assert store.get(StoredCall, "c1", owner="you") is None
    assert store.count(StoredCall, owner="me") == 2
    assert [row.id for row in store.find(StoredCall, created_at=Before(1.5))] == ["c1"]
    assert store.delete(StoredCall, created_at=Before(1.5), tool_answer="x") == 0
    assert store.delete(StoredCall, created_at=Before(1.5)) == 1
    assert store.delete(StoredCall, id="c2") == 1


def test_columns_are_added_up_and_had_by_name(store: Store) -> None:
    assert store.amount(Upload, owner="me") == (0, 0)
    for n in range(3):
        store.add(upload(f"f{n}", 2**40 + n))
    store.add(upload("f3", 5, "you"))
    assert store.amount(Upload, owner="me") == (3, 3 * 2**40 + 3)
    assert store.get(UploadSize, "f3") == UploadSize(id="f3", bytes=5, owner="you")
    assert store.find(UploadSize, owner="me") == [UploadSize(id=f"f{n}", bytes=2**40 + n, owner="me") for n in range(3)]


def test_a_row_like_another_is_not_added(store: Store) -> None:
    assert store.add_if_new(file("f1", "a"))
    assert not store.add_if_new(file("f2", "a"))
    assert store.count(ContainerFile) == 1


def test_many_are_found_at_once(store: Store) -> None:
    ids = [f"c{n}" for n in range(MANY + 1)]
    for id_ in ids[::250]:
        store.add(call(id_))
    assert [row.id for row in store.get_all(StoredCall, ids, owner="me")] == ids[::250]
    assert store.get_all(StoredCall, []) == []


@pytest.mark.parametrize("id_", ["a\0b", "\0", "x" * 10_000, "'; DROP TABLE calls; --", "\U0001f600"])
def test_any_id_may_be_asked_for(store: Store, id_: str) -> None:
    assert store.get(StoredCall, id_) is None
    assert store.get_all(StoredCall, [id_]) == []
    assert store.delete(StoredCall, id=id_) == 0


def test_bytes_and_every_character_are_kept(store: Store) -> None:
    store.add(StoredEvents(id="e", created_at=1.0, data=bytes(range(256))))
    assert [found.data for found in store.find(StoredEvents)] == [bytes(range(256))]
    store.add(call("c", tool_answer="é\U0001f600"))
    assert store.get(StoredCall, "c") == call("c", tool_answer="é\U0001f600")


def test_threads_share_it(store: Store) -> None:
    def one(n: int) -> None:
        store.add(call(f"c{n}"))
        store.change(StoredCall, f"c{n}", tool_answer=str(n))

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(one, range(100)))
    assert {int(row.tool_answer) for row in store.find(StoredCall)} == set(range(100))


def test_a_gateway_on_postgresql(new_gateway: NewGateway, postgresql: str) -> None:
    gateway = new_gateway({"m": [code("x = 20; x"), "Ok.", code("x + 1"), "21.", "Ok."]}, database=postgresql)
    first = post(gateway).json()
    second = post(gateway, previous_response_id=first["id"], include=INCLUDE).json()
    assert outputs(second)[0]["outputs"] == [{"type": "logs", "logs": "21"}]
    begun = post(gateway, background=True).json()
    until(lambda: has_ended(gateway, begun["id"]))
    other = beside(new_gateway, gateway, database=postgresql)
    again = events_of(httpx.get(f"{other.url}/v1/responses/{begun['id']}?stream=true").text)
    assert again[-1]["type"] == "response.completed"
    assert httpx.get(f"{other.url}/v1/responses/%00").status_code == 404
    assert post(other, previous_response_id="\0").status_code == 400
    assert post(other, tools=[{"type": "code_interpreter", "container": "\0"}]).status_code == 404
    gateway.services.sweep()
    assert httpx.get(f"{other.url}/v1/responses/{first['id']}").json() == first


def test_only_the_first_write_waits_for_a_lock_that_stays(work_dir: Path) -> None:
    path, patience, writes = work_dir / "s.db", 1.0, 40
    store = Store(f"sqlite:///{path}", patience)
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        for _ in range(writes):
            with pytest.raises(RowsAway):
                store.delete(ContainerRecord, id="a")
        assert patience <= time.monotonic() - started < writes * patience / 2
        assert not store.answers()
        assert store.find(ContainerRecord) == []
        other.execute("ROLLBACK")
    assert store.delete(ContainerRecord, id="a") == 0
    assert store.answers()
    store.close()


def test_a_change_and_what_is_added_with_it_are_done_together_or_not_at_all(store: Store) -> None:
    store.add(call("c1"), call("c2"))
    assert store.change_and_add(StoredCall, "c1", {"tool_answer": "x"}, [file("f1", "a")], tool_answer="y")
    assert not store.change_and_add(StoredCall, "c1", {"tool_answer": "x"}, [file("f2", "b")], tool_answer="z")
    with pytest.raises(sa.exc.IntegrityError):
        store.change_and_add(StoredCall, "c1", {}, [file("f3", "c"), call("c2")], tool_answer="z")
    assert [each.tool_answer for each in store.find(StoredCall, id="c1")] == ["y"]
    assert [each.id for each in store.find(ContainerFile)] == ["f1"]


def test_a_connection_to_a_silent_server_ends() -> None:
    failures: list[Exception] = []

    def connect(port: int) -> None:
        try:
            Store(f"postgresql+psycopg://me@127.0.0.1:{port}/x", timeout=0.1)
        except sa.exc.OperationalError as exc:
            failures.append(exc)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        connecting = threading.Thread(target=connect, args=(silent.getsockname()[1],))
        connecting.start()
        connecting.join(60)
    connecting.join()  # at the latest, the end of the server ends it
    assert "timeout" in str(failures[0])


@pytest.mark.parametrize(("given", "seconds"), [("", 7), ("&connect_timeout=5&tcp_user_timeout=5000", 5)])
def test_a_connection_whose_server_falls_silent_ends(postgresql: str, given: str, seconds: int) -> None:
    store = Store(postgresql + given, timeout=7)
    with contextlib.closing(store), store._transaction() as connection:
        options = cast("Any", connection.connection.driver_connection).info.get_parameters()
    assert {name: options[name] for name in ("connect_timeout", "tcp_user_timeout", "keepalives_idle")} == {
        "connect_timeout": str(seconds),
        "tcp_user_timeout": str(seconds * 1_000),
        "keepalives_idle": "7",
    }
