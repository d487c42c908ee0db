"""A database of an older version keeps what it holds, whoever opens it, and however many at once."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from agent_tools.containers.records import Container
from agent_tools.errors import InvalidParams
from agent_tools.gateway.store.records import BackgroundClaim, StoredCall
from agent_tools.gateway.store.store import Store, prepare
from agent_tools.gateway.store.tables import background, metadata
from tests.gateway.postgresql import postgresql

__all__ = ["postgresql"]

FIRST = {"responses", "items", "background", "events", "calls", "containers", "container_files", "uploads"}
LATER = ("gateway", "wanted_by", "generation", "origin")  # columns of containers
CLAIM = BackgroundClaim(id="resp_1", created_at=1.0, gateway="{}", seen_at=2.0)


@pytest.fixture(autouse=True)
def no_database_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_tools.gateway.store.store.prepare", prepare)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, postgresql: str, work_dir: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{work_dir}/s.db"
    engine = sa.create_engine(postgresql)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP SCHEMA public CASCADE"))
        connection.execute(sa.text("CREATE SCHEMA public"))
    engine.dispose()
    return postgresql


OLD = """
CREATE TABLE under_way (id VARCHAR(64) NOT NULL PRIMARY KEY, created_at FLOAT NOT NULL, gateway TEXT NOT NULL,
    seen_at FLOAT NOT NULL);
CREATE TABLE containers (id VARCHAR(64) NOT NULL PRIMARY KEY, owner VARCHAR(64) NOT NULL, created_at FLOAT NOT NULL,
    name TEXT NOT NULL, last_active_at FLOAT NOT NULL, idle_minutes FLOAT NOT NULL, memory_limit VARCHAR(8) NOT NULL,
    status VARCHAR(16) NOT NULL, has_run BOOLEAN NOT NULL, bytes BIGINT NOT NULL);
CREATE INDEX ix_containers_owner ON containers (owner);
CREATE TABLE calls (id VARCHAR(64) NOT NULL PRIMARY KEY, owner VARCHAR(64) NOT NULL, created_at FLOAT NOT NULL,
    told TEXT NOT NULL);
CREATE INDEX ix_calls_created_at ON calls (created_at);
INSERT INTO under_way VALUES ('resp_1', 1.0, '{}', 2.0);
INSERT INTO containers VALUES ('cntr_1', 'me', 1.0, 'mine', 2.0, 20.0, '2g', 'active', true, 7);
INSERT INTO calls VALUES ('ci_1', 'me', 1.0, '42')
"""
"""A database of the first versions: a table with another name, one without a column, and most not there yet."""


def make_old(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in OLD.split(";"):
            connection.exec_driver_sql(statement)
    engine.dispose()


def make_unversioned(url: str) -> None:
    """Make a database of the last version before revisions."""
    Store(url).close()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE alembic_version")
        for table in set(metadata.tables) - FIRST:
            connection.exec_driver_sql(f"DROP TABLE {table}")
        connection.exec_driver_sql("DROP INDEX ix_containers_gateway")
        for column in LATER:
            connection.exec_driver_sql(f"ALTER TABLE containers DROP COLUMN {column}")
        connection.exec_driver_sql("ALTER TABLE container_files DROP COLUMN upload_id")
        connection.exec_driver_sql("ALTER TABLE calls DROP COLUMN server_fields")
        connection.execute(background.insert().values(vars(CLAIM)))
    engine.dispose()


def differences(url: str) -> list[Any]:
    """What Alembic would change to get from a database to the tables that the store knows."""
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        found = compare_metadata(MigrationContext.configure(connection), metadata)
    engine.dispose()
    return found


MAKERS = {"empty": lambda url: None, "old": make_old, "unversioned": make_unversioned}


@pytest.mark.parametrize("made", MAKERS)
def test_every_database_becomes_the_tables_of_today(url: str, made: str) -> None:
    MAKERS[made](url)
    for _ in range(2):
        Store(url).close()
    assert differences(url) == []


def test_what_an_old_database_holds_is_kept(url: str) -> None:
    make_old(url)
    store = Store(url)
    assert store.find(BackgroundClaim) == [CLAIM]
    (container,) = store.find(Container)
    assert (container.gateway, container.generation, container.origin) == ("", 0, "")
    assert (container.id, container.network, container.bytes, container.has_run) == ("cntr_1", "", 7, True)
    assert [call.told for call in store.find(StoredCall, owner="me")] == ["42"]
    store.close()
    assert "under_way" not in names(url)


def test_the_database_of_a_newer_version_is_refused(url: str) -> None:
    Store(url).close()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'of_tomorrow'")
    engine.dispose()
    with pytest.raises(InvalidParams, match="newer version"):
        Store(url)


def test_a_revision_that_fails_leaves_the_database_as_it_was(url: str) -> None:
    make_old(url)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE INDEX ix_items_created_at ON calls (created_at)")  # a name that is needed
    with pytest.raises(sa.exc.DBAPIError):
        prepare(engine)
    engine.dispose()
    assert names(url) == {"under_way", "containers", "calls"}


def names(url: str) -> set[str]:
    engine = sa.create_engine(url)
    try:
        return set(sa.inspect(engine).get_table_names())
    finally:
        engine.dispose()


def test_gateways_that_start_at_the_same_time_find_them_too(url: str) -> None:
    make_old(url)
    script = "import sys; from agent_tools.gateway.store.store import Store; Store(sys.argv[1]).close()"
    started = [subprocess.Popen([sys.executable, "-c", script, url]) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: Store(url).close(), range(3)))
    assert [each.wait() for each in started] == [0, 0, 0]
    store = Store(url)
    assert store.find(BackgroundClaim) == [CLAIM]
    store.close()
    assert differences(url) == []


def test_a_table_that_cannot_be_renamed_is_an_error(work_dir: Path) -> None:
    url = f"sqlite:///{work_dir}/s.db"
    make_old(url)
    engine = sa.create_engine(f"sqlite:///file:{work_dir}/s.db?mode=ro&uri=true")
    with pytest.raises(sa.exc.OperationalError):
        prepare(engine)
    engine.dispose()
    assert "under_way" in names(url)
