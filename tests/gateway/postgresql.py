"""A PostgreSQL server for tests, from a wheel that carries its programs; on a socket in a folder of its own."""

from __future__ import annotations

import fcntl
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
PROGRAMS = "pgserver/pginstall/bin"
READY = Path(__file__).resolve().parents[2] / ".venv" / WHEEL
NOBODY = 65534


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """Its URL."""
    folder = Path(tempfile.mkdtemp(prefix="agt-pg-", dir="/tmp"))  # short, and where another user gets to
    folder.chmod(0o755)
    try:
        _fill(folder)
        yield from _serving(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def another(url: str, name: str) -> str:
    """Make a further database on the server of a URL; return its URL."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return url.replace("@/postgres?", f"@/{name}?")


def _fill(folder: Path) -> None:
    """Put the programs and the data of a new server there: copies of those of the first one that this checkout had."""
    with open(f"{READY}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if READY.exists():
            subprocess.run(["cp", "-a", f"{READY}/.", folder], check=True)
            return
        uv = [sys.executable, "-m", "uv", "pip", "install", "-q", "--target", str(folder)]
        wheel = [
            "--python-version",
            "3.12",
            "--only-binary",
            ":all:",
            "--no-deps",
            WHEEL,
        ]  # any will do: no Python runs
        subprocess.run([*uv, *wheel], check=True, timeout=120)
        for name in ("data", "sockets"):
            (folder / name).mkdir(mode=0o755)
            if os.getuid() == 0:
                os.chown(folder / name, NOBODY, NOBODY)
        init = [folder / PROGRAMS / "initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        subprocess.run([*init, "--no-sync"], check=True, timeout=60, **_as_nobody(folder))
        with tempfile.TemporaryDirectory(dir=READY.parent) as beside:
            subprocess.run(["cp", "-a", folder, f"{beside}/ready"], check=True)
            os.rename(f"{beside}/ready", READY)


def _serving(folder: Path) -> Iterator[str]:
    sockets, quiet = folder / "sockets", _as_nobody(folder)
    options = ["-k", sockets, "-c", "listen_addresses=", "-c", "fsync=off"]
    with subprocess.Popen([folder / PROGRAMS / "postgres", "-D", folder / "data", *options], **quiet) as server:
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
