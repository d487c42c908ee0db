"""The schema of a database: it is made once, also by several gateways at the same time."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from agent_tools.errors import InvalidParams
from agent_tools.gateway.store.schema import prepare
from agent_tools.gateway.store.store import Store
from agent_tools.gateway.store.tables import metadata
from tests.gateway.postgresql import postgresql

__all__ = ["postgresql"]


@pytest.fixture(autouse=True)
def no_database_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_tools.gateway.store.schema.prepare", prepare)


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


def differences(url: str) -> list[Any]:
    """What Alembic would change to get from a database to the tables that the store knows."""
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        found = compare_metadata(MigrationContext.configure(connection), metadata)
    engine.dispose()
    return found


def test_an_empty_database_becomes_the_tables_of_the_store(url: str) -> None:
    for _ in range(2):
        Store(url).close()
    assert differences(url) == []


def test_the_database_of_a_newer_version_is_refused(url: str) -> None:
    Store(url).close()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'of_tomorrow'")
    engine.dispose()
    with pytest.raises(InvalidParams, match="newer version"):
        Store(url)


def test_a_revision_that_fails_leaves_the_database_as_it_was(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE others (created_at FLOAT)")
        connection.exec_driver_sql("CREATE INDEX ix_items_created_at ON others (created_at)")  # a name that is needed
    with pytest.raises(sa.exc.DBAPIError):
        prepare(engine)
    engine.dispose()
    assert names(url) == {"others"}


def names(url: str) -> set[str]:
    engine = sa.create_engine(url)
    try:
        return set(sa.inspect(engine).get_table_names())
    finally:
        engine.dispose()


def test_gateways_that_start_at_the_same_time_find_them_too(url: str) -> None:
    script = "import sys; from agent_tools.gateway.store.store import Store; Store(sys.argv[1]).close()"
    started = [subprocess.Popen([sys.executable, "-c", script, url]) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: Store(url).close(), range(3)))
    assert [each.wait() for each in started] == [0, 0, 0]
    assert differences(url) == []


def test_a_database_that_cannot_be_written_is_an_error(work_dir: Path) -> None:
    url = f"sqlite:///{work_dir}/s.db"
    sqlite3.connect(work_dir / "s.db").execute("CREATE TABLE others (created_at FLOAT)").connection.close()
    engine = sa.create_engine(f"sqlite:///file:{work_dir}/s.db?mode=ro&uri=true")
    with pytest.raises(sa.exc.OperationalError):
        prepare(engine)
    engine.dispose()
    assert names(url) == {"others"}
