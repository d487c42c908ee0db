"""A PostgreSQL server for tests, from a wheel that carries its programs; on a socket in a folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

WHEEL = "pgserver==0.1.4"
NOBODY = 65534


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """Its URL."""
    folder = Path(tempfile.mkdtemp(prefix="agt-pg-", dir="/tmp"))  # short, and where another user gets to
    folder.chmod(0o755)
    try:
        yield from _serving(folder, _programs(folder / "wheel"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def another(url: str, name: str) -> str:
    """Make a further database on the server of a URL; return its URL."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return url.replace("@/postgres?", f"@/{name}?")


def _programs(folder: Path) -> Path:
    """The folder of its programs, which need no Python: any wheel will do."""
    uv = [sys.executable, "-m", "uv", "pip", "install", "-q", "--target", str(folder)]
    wheel = ["--python-version", "3.12", "--only-binary", ":all:", "--no-deps", WHEEL]
    subprocess.run([*uv, *wheel], check=True, timeout=120)
    return folder / "pgserver" / "pginstall" / "bin"


def _serving(folder: Path, programs: Path) -> Iterator[str]:
    data, sockets, quiet = folder / "data", folder / "sockets", _as_nobody(folder)
    for made in (data, sockets):
        made.mkdir(mode=0o755)
        if os.getuid() == 0:
            os.chown(made, NOBODY, NOBODY)
    init = [programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
    subprocess.run(init, check=True, timeout=60, **quiet)
    options = ["-k", sockets, "-c", "listen_addresses=", "-c", "fsync=off"]
    with subprocess.Popen([programs / "postgres", "-D", data, *options], **quiet) as server:
        url = f"postgresql://postgres@/postgres?host={sockets}"
        pause = threading.Event()
        while not _answers(url):
            assert server.poll() is None
            pause.wait(0.05)
        yield url.replace("postgresql://", "postgresql+psycopg://")
        server.send_signal(signal.SIGINT)


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def _as_nobody(folder: Path) -> dict[str, Any]:
    """It does not run as root."""
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
    return {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder, **user}
