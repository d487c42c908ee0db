"""Backups of a gateway that runs, on both databases, and gateways that are restored from them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from agent_tools.cli import cli
from agent_tools.gateway.serving.backup import FILES, MANIFEST
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedReply
from tests.doubles import ProcessEngine
from tests.gateway.asking import code, outputs, post, upload
from tests.gateway.conftest import NewGateway
from tests.gateway.postgresql import PROGRAMS, another, postgresql

__all__ = ["postgresql"]
WRITES = "import os; open('a.txt', 'w').write('mine'); os.symlink('/etc/hostname', 'link'); os.mkfifo('pipe'); x = 41"


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, postgresql: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """'' for SQLite, else the URL of a database that is empty."""
    if request.param == "sqlite":
        yield ""
        return
    url = postgresql
    programs = Path(url.partition("host=")[2]).parent / PROGRAMS
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")  # as new as the server
    yield url
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP SCHEMA public CASCADE"))
        connection.execute(sa.text("CREATE SCHEMA public"))
    engine.dispose()


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(each) for each in arguments])


def test_a_restored_gateway_has_responses_uploads_files_and_keys(
    new_gateway: NewGateway, work_dir: Path, database: str
) -> None:
    gateway = new_gateway({"m": [code(WRITES), ScriptedReply(text="Done.")]}, database=database)
    file = upload(gateway.client(), 1_000)
    body = post(gateway).json()
    container = outputs(body)[0]["container_id"]
    from_there = ["--data-dir", gateway.services.config.data_dir, *(["--database", database] if database else [])]
    key = run("keys", *from_there, "add", "alice").output.strip()
    done = run("backup", work_dir / "b", *from_there)
    assert done.exit_code == 0, done.output
    assert {path.name for path in (work_dir / "b").iterdir()} >= {FILES, MANIFEST}
    assert (work_dir / "b").stat().st_mode & 0o777 == 0o700
    gateway.__exit__()

    other = another(database, "restored") if database else ""
    to_there = ["--data-dir", work_dir / "new", *(["--database", other] if other else [])]
    done = run("restore", work_dir / "b", *to_there)
    assert done.exit_code == 0, done.output
    folder = work_dir / "new" / "containers" / container
    assert (folder / "a.txt").read_text() == "mine"
    assert (folder / "link").is_symlink()
    runtime = Runtime(ProcessEngine(), lambda packages: "none")
    again = new_gateway(
        {"m": [code("open('a.txt').read()"), ScriptedReply(text="Yes.")]},
        runtime=runtime,
        data_dir=work_dir / "new",
        database=other,
    )
    try:
        found = httpx.get(f"{again.url}/v1/responses/{body['id']}").json()
        assert found["output"] == body["output"]
        assert len(again.client().files.content(file.id).read()) == 1_000
        more = post(again, previous_response_id=body["id"], include=["code_interpreter_call.outputs"]).json()
        assert outputs(more)[0]["outputs"] == [{"type": "logs", "logs": "'mine'"}]
        assert "alice" in run("keys", *to_there, "list").output
        assert key.startswith("sk-at-")
    finally:
        again.__exit__()
        runtime.close_all()


def test_nothing_is_overwritten(new_gateway: NewGateway, work_dir: Path) -> None:
    gateway = new_gateway({"m": [ScriptedReply(text="Ok.")]})
    data = ["--data-dir", gateway.services.config.data_dir]
    (work_dir / "full").mkdir()
    (work_dir / "full" / "mine").write_text("x")
    done = run("backup", work_dir / "full", *data)
    assert (done.exit_code, (work_dir / "full" / "mine").read_text()) == (1, "x")
    assert "holds something already" in str(done.exception)
    assert run("backup", work_dir / "b", *data).exit_code == 0
    done = run("restore", work_dir / "b", *data)
    assert "holds something already" in str(done.exception)
    done = run("restore", work_dir / "b", "--data-dir", work_dir / "new", "--database", "postgresql://h/d")
    assert "leave out --database" in str(done.exception)
    assert not (work_dir / "new").exists()


@pytest.mark.parametrize("harm", ["cut", "gone", "no manifest"])
def test_a_backup_that_is_not_whole_is_not_restored(new_gateway: NewGateway, work_dir: Path, harm: str) -> None:
    gateway = new_gateway({})
    assert run("backup", work_dir / "b", "--data-dir", gateway.services.config.data_dir).exit_code == 0
    if harm == "cut":
        with open(work_dir / "b" / FILES, "r+b") as file:
            file.truncate(1_000)
    else:
        (work_dir / "b" / (FILES if harm == "gone" else MANIFEST)).unlink()
    done = run("restore", work_dir / "b", "--data-dir", work_dir / "new")
    assert done.exit_code == 1
    assert "missing" in str(done.exception)
    assert not (work_dir / "new").exists()


def test_where_no_gateway_is_there_is_nothing_to_copy(work_dir: Path) -> None:
    done = run("backup", work_dir / "b", "--data-dir", work_dir / "typo")
    assert "No gateway has its database" in str(done.exception)
    assert not (work_dir / "typo").exists()
