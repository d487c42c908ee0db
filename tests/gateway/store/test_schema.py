"""A database of an older version keeps what it holds, whoever opens it, and however many at once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from agent_tools.gateway.store.records import BackgroundClaim
from agent_tools.gateway.store.schema import prepare
from agent_tools.gateway.store.store import Store
from agent_tools.gateway.store.tables import containers
from tests.gateway.postgresql import postgresql

__all__ = ["postgresql"]

CLAIM = BackgroundClaim(id="resp_1", created_at=1.0, gateway="{}", seen_at=2.0)


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


def make_old(url: str) -> None:
    """Give a store's database the name that a table had before."""
    store = Store(url)
    store.add(CLAIM)
    store.close()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE background RENAME TO under_way"))
    engine.dispose()


def make_older(url: str) -> None:
    """Take out of a store's database a column that came later."""
    Store(url).close()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        kinds = {column.name: column.type.python_type for column in containers.columns}
        made = {name: "x" if kind is str else kind(1) for name, kind in kinds.items()}
        connection.execute(containers.insert().values(made))
        connection.execute(sa.text("ALTER TABLE containers DROP COLUMN network"))
    engine.dispose()


def test_a_column_that_came_later_is_added_with_its_default_by_one_gateway_or_several(url: str) -> None:
    make_older(url)
    threads = [threading.Thread(target=lambda: Store(url).close()) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        assert connection.execute(sa.select(containers.c.id, containers.c.network)).all() == [("x", "")]
    engine.dispose()


def names(url: str) -> set[str]:
    engine = sa.create_engine(url)
    try:
        return set(sa.inspect(engine).get_table_names())
    finally:
        engine.dispose()


def test_claims_of_an_older_version_are_found_and_its_table_is_gone(url: str) -> None:
    make_old(url)
    for _ in range(2):
        store = Store(url)
        assert store.find(BackgroundClaim) == [CLAIM]
        store.close()
    assert "under_way" not in names(url)


def test_gateways_that_start_at_the_same_time_find_them_too(url: str) -> None:
    make_old(url)
    found: list[list[BackgroundClaim]] = []

    def open_and_read() -> None:
        store = Store(url)
        found.append(store.find(BackgroundClaim))
        store.close()

    threads = [threading.Thread(target=open_and_read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[CLAIM]] * 6


def test_a_table_that_cannot_be_renamed_is_an_error(work_dir: Path) -> None:
    url = f"sqlite:///{work_dir}/s.db"
    make_old(url)
    engine = sa.create_engine(f"sqlite:///file:{work_dir}/s.db?mode=ro&uri=true")
    with pytest.raises(sa.exc.OperationalError):
        prepare(engine)
    engine.dispose()
    assert "under_way" in names(url)
