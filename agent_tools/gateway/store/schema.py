"""The schema of a database, brought to the newest of the revisions at the start of a gateway.

Gateways that start at the same time wait for each other: the first applies what is missing, in one transaction under
the database's own lock, and the others find it done.
"""

from __future__ import annotations

import threading
from functools import cache
from pathlib import Path

import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import Script, ScriptDirectory

from agent_tools.errors import InvalidParams

REVISIONS = Path(__file__).parent / "revisions"
_LOCK = 0x6167_7473  # PostgreSQL's number of our lock: any, as long as it stays
_TOO_NEW = "The database was made by a newer version of agent_tools: start that one, or give another database."
_at_work = threading.Lock()  # Alembic's operations are the process's


def prepare(engine: sa.Engine) -> None:
    """Bring a database to the newest revision.

    Raises:
        InvalidParams: it is of a newer version than this one.
        SQLAlchemyError: it cannot be read or changed.
    """
    script = _script()
    with engine.connect() as connection:
        if MigrationContext.configure(connection).get_current_revision() == script.get_current_head():
            return
    with _at_work, engine.begin() as connection:
        _lock(connection)
        context = MigrationContext.configure(connection)
        with Operations.context(context):
            for revision in _missing(script, context.get_current_revision()):
                revision.module.upgrade()
        context.stamp(script, "head")


@cache
def _script() -> ScriptDirectory:
    """Return the revisions, all of them read: threads may share what is returned."""
    script = ScriptDirectory(str(REVISIONS), version_locations=[str(REVISIONS)])
    script.get_current_head()
    return script


def _lock(connection: sa.Connection) -> None:
    """Keep every other gateway waiting until the transaction ends."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))


def _missing(script: ScriptDirectory, current: str | None) -> list[Script]:
    """Return the revisions that come after this one, oldest first."""
    found = list(reversed(list(script.walk_revisions())))
    names = [each.revision for each in found]
    if current is not None and current not in names:
        raise InvalidParams(_TOO_NEW)
    return found[names.index(current) + 1 :] if current else found
