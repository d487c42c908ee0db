"""Sweeping: old objects are forgotten, and a failure does not end it."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from agent_tools.containers.records import Upload
from agent_tools.gateway.store.records import StoredConversation, StoredEvents, StoredResponse
from agent_tools.gateway.store.store import table_of
from agent_tools.testing import ScriptedReply
from tests.gateway.asking import code, is_idle, post, until
from tests.gateway.conftest import NewGateway


def test_a_database_that_is_away_does_not_end_the_sweeping(
    new_gateway: NewGateway, caplog: pytest.LogCaptureFixture
) -> None:
    services = new_gateway({}).services
    engine = sa.create_engine(services.config.database_url)
    table_of(StoredConversation).drop(engine)
    assert services.sweep() == services.sweep_failures == 1
    assert "sweeping failed: RowsAway" in caplog.text
    table_of(StoredConversation).create(engine)
    engine.dispose()
    assert services.sweep() == 0


def test_what_is_older_than_it_may_be_is_forgotten(new_gateway: NewGateway) -> None:
    gateway = new_gateway({"m": lambda _: ScriptedReply(text="Ok.")})
    upload = gateway.client().files.create(file=("a", b"a"), purpose="user_data")
    ids = [post(gateway, tools=[], background=is_background).json()["id"] for is_background in (True, False) * 2]
    until(lambda: is_idle(gateway))
    for table, id_ in ((StoredResponse, ids[0]), (StoredResponse, ids[1]), (StoredEvents, ids[0])):
        gateway.services.store.change(table, id_, created_at=0)
    gateway.services.store.change(Upload, upload.id, created_at=0)
    gateway.services.sweep()
    assert {row.id for row in gateway.services.store.find(StoredResponse)} == set(ids[2:])
    assert [row.id for row in gateway.services.store.find(StoredEvents)] == [ids[2]]
    assert list((gateway.services.config.data_dir / "uploads").iterdir()) == []


def test_variables_are_saved_as_often_as_was_asked_for(
    new_gateway: NewGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_tools.gateway.services.SWEEP_EVERY", 3600.0)
    gateway = new_gateway({"m": [code("x = 1"), "Ok."]}, save_every=0.2)
    post(gateway)
    assert until(lambda: list(gateway.services.config.data_dir.glob("variables/*.saved")))
