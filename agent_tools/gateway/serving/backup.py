"""Backups of a gateway that runs, and their restoration: the database, then the files of `data_dir`.

The database is copied first. Rows of the copy then name files that are copied later, unless a client has deleted them
meanwhile; in the other order, files that were uploaded in between would be missing. A backup is complete once its
manifest is there, which holds the digests of both parts.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from agent_tools import __version__, settings
from agent_tools.errors import InvalidParams
from agent_tools.gateway.config import DATABASE, GatewayConfig
from agent_tools.gateway.data_dir import prepare_data_dir
from agent_tools.gateway.store.records import GatewayRow
from agent_tools.gateway.store.store import Store
from agent_tools.gateway.store.tables import metadata

MANIFEST = "backup.json"
FILES = "files.tar"
DUMP = "gateway.dump"  # of PostgreSQL
_CHANGED = 1  # tar's exit code where a file changed or went while it was read


def back_up(config: GatewayConfig, folder: Path) -> None:
    """Write a backup into a folder that is empty or new.

    Raises:
        InvalidParams: the folder is not empty, a program is missing, or a part cannot be copied.
    """
    _check_empty(folder, "It is not overwritten: name another folder.")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    if config.database:
        database = folder / DUMP
        _postgresql("pg_dump", config, "--format=custom", "--file", str(database))
    else:
        database = folder / DATABASE
        _copy_sqlite(config.data_dir / DATABASE, database)
    left_out = [f"--exclude=./{DATABASE}{suffix}" for suffix in ("", "-wal", "-shm", "-journal")]
    command = ["tar", "--create", "--sparse", "--numeric-owner", *left_out, "--file", str(folder / FILES)]
    _run([*command, "--directory", str(config.data_dir), "."], allowed=_CHANGED)
    for path in (database, folder / FILES):
        path.chmod(0o600)
    parts = {path.name: _digest(path) for path in (database, folder / FILES)}
    manifest = {"version": __version__, "created_at": int(time.time()), "sha256": parts}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def restore(folder: Path, config: GatewayConfig) -> None:
    """Fill an empty `data_dir`, and an empty database, from a backup.

    Raises:
        InvalidParams: the backup is incomplete or of the other kind of database, the target is not empty, a program is
        missing, or a part cannot be copied.
    """
    parts = _checked(folder)
    if (DUMP in parts) != bool(config.database):
        raise InvalidParams(
            "The backup is of PostgreSQL: give an empty database by --database."
            if DUMP in parts
            else "The backup is of SQLite, which goes into the data folder: leave out --database."
        )
    _check_empty(config.data_dir, "A restored gateway needs a folder of its own: name another --data-dir.")
    if config.database:
        _check_no_tables(config)
    prepare_data_dir(config.data_dir)
    extract = [
        "tar",
        "--extract",
        "--sparse",
        "--numeric-owner",
        "--preserve-permissions",
        "--file",
        str(folder / FILES),
    ]
    _run([*extract, "--directory", str(config.data_dir)])
    if config.database:
        _postgresql("pg_restore", config, "--no-owner", "--single-transaction", str(folder / DUMP))
    else:
        shutil.copyfile(folder / DATABASE, config.data_dir / DATABASE)
        (config.data_dir / DATABASE).chmod(0o600)
    with closing(Store(config.database_url)) as store:
        store.delete(GatewayRow)  # those that were alive then have no sandbox of what is restored


def _checked(folder: Path) -> dict[str, str]:
    """Return the digests of a backup's parts, by name.

    Raises:
        InvalidParams: one is missing or was changed.
    """
    try:
        manifest: Any = json.loads((folder / MANIFEST).read_text())
        parts: dict[str, str] = manifest["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise InvalidParams(f"{folder} has no whole backup: {MANIFEST} is missing or unreadable.") from exc
    if set(parts) not in ({FILES, DATABASE}, {FILES, DUMP}):
        raise InvalidParams(f"{folder} has no backup of a gateway.")
    for name, digest in parts.items():
        if not (folder / name).is_file() or _digest(folder / name) != digest:
            raise InvalidParams(f"{folder / name} is missing, or not as it was written.")
    return parts


def _check_empty(folder: Path, advice: str) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidParams(f"{folder} holds something already. {advice}")


def _check_no_tables(config: GatewayConfig) -> None:
    engine = sa.create_engine(config.database_url)
    try:
        taken = set(sa.inspect(engine).get_table_names()) & set(metadata.tables)
    except (sa.exc.SQLAlchemyError, ImportError) as exc:
        raise InvalidParams(f"The database does not answer ({type(exc).__name__}).") from exc
    finally:
        engine.dispose()
    if taken:
        raise InvalidParams("The database has a gateway's tables already. It is not overwritten: make an empty one.")


def _copy_sqlite(source: Path, target: Path) -> None:
    """Copy a consistent snapshot of a database that may be in use."""
    if not source.is_file():
        raise InvalidParams(f"No gateway has its database in {source.parent}: give its --data-dir or --database.")
    target.touch(0o600)
    with closing(sqlite3.connect(source)) as found, closing(sqlite3.connect(target)) as copy:
        found.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")  # one file, without a write-ahead log


def _postgresql(program: str, config: GatewayConfig, *arguments: str) -> None:
    url = sa.engine.make_url(config.database_url)
    variables = {**settings.all_variables(), **({"PGPASSWORD": url.password} if url.password else {})}
    shown = url.set(drivername="postgresql", password=None).render_as_string()  # a command line is seen by all
    _run([program, "--dbname", shown, *arguments], variables)


def _run(command: list[str], variables: dict[str, str] | None = None, allowed: int = 0) -> None:
    try:
        done = subprocess.run(command, env=variables, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    except OSError as exc:
        raise InvalidParams(f"{command[0]} cannot be run ({exc.strerror}). Install it, and put it on PATH.") from exc
    if not 0 <= done.returncode <= allowed:
        raise InvalidParams(f"{command[0]} failed: {done.stderr.strip()[-2_000:]}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
