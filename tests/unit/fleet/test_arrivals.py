"""What arrives at a session in pieces, or before its time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_tools.engines.engine import Isolation
from agent_tools.errors import EngineError, FileRejected
from agent_tools.fleet import SandboxHost
from agent_tools.fleet.leased_session import IncomingFiles, UnstartedRuns
from agent_tools.fleet.protocol import MAX_EARLY_ENDS, RemoteSpec, RunEnded
from agent_tools.limits import Limits
from tests.unit.fleet.conftest import Rig, process_host


def refuse_100(size: int) -> None:
    if size > 100:
        raise FileRejected("too large")


@pytest.fixture
def spools(tmp_path: Path) -> IncomingFiles:
    return IncomingFiles(tmp_path, refuse_100)


@pytest.fixture
def host() -> Iterator[SandboxHost]:
    host = process_host(1)
    host.open("a", RemoteSpec(Isolation(), Limits()))
    yield host
    host.close_all()


def test_a_file_that_broke_off_begins_anew(spools: IncomingFiles) -> None:
    spools.add("f", 0, b"old")
    spools.add("f", 0, b"new")
    spools.add("f", 3, b"er")
    with spools.whole("f", 5) as whole:
        assert whole.read() == b"newer"


@pytest.mark.parametrize(("offset", "data"), [(2, b"x"), (4, b"x"), (3, b"x" * 100)])
def test_a_piece_that_does_not_fit_drops_the_file(spools: IncomingFiles, offset: int, data: bytes) -> None:
    spools.add("f", 0, b"old")
    with pytest.raises(FileRejected):
        spools.add("f", offset, data)
    with pytest.raises(FileRejected):
        spools.whole("f")


def test_a_file_of_another_size_is_refused(spools: IncomingFiles) -> None:
    spools.add("f", 0, b"old")
    with pytest.raises(FileRejected):
        spools.whole("f", 4)


def test_a_large_file_is_put_into_its_place_after_one_that_broke_off(host: SandboxHost) -> None:
    host.put_piece("a", "f", (6, 1, 1), 0, b"abc")
    host.put_piece("a", "f", (4, 2, 1), 0, b"12")
    host.put_piece("a", "f", (4, 2, 1), 2, b"34")
    assert host.do("a", "files", "read", "f") == b"1234"


def test_early_words_are_kept_within_a_bound() -> None:
    early = UnstartedRuns()
    for number in range(MAX_EARLY_ENDS + 1):
        early.note(f"{number}", "cancel")
    early.note("1", "drop")
    early.note("1", "cancel")
    assert [early.taken("0"), early.taken("1"), early.taken("1"), early.taken("2")] == [None, "drop", None, "cancel"]


def test_code_that_was_ended_before_it_came_is_not_run(host: SandboxHost) -> None:
    host.cancel("a", "first")
    items, is_over = host.begin("a", "first", "code", "open('ran', 'w').close()", 30.0, {})
    assert is_over
    assert [type(item) for item in items] == [RunEnded]
    host.drop("a", "second")
    with pytest.raises(EngineError, match="given up"):
        host.begin("a", "second", "code", "open('ran', 'w').close()", 30.0, {})
    assert host.do("a", "files", "scan", ".") == []


def test_what_a_run_wrote_that_nobody_read_comes_with_the_next(host: SandboxHost) -> None:
    leased = host._leased["a"]
    code = "_ = open('made', 'w').write('m')\nprint('on', flush=True)\nimport time; time.sleep(0.5)"
    assert not host.begin("a", "first", "code", code, 30.0, {})[1]
    run = leased._runs["first"]
    waited = threading.Event()
    while run.at_read is bool and not waited.wait(0.05):
        pass
    waited.wait(0.2)
    host.drop("a", "first")
    items, is_over = host.begin("a", "next", "code", "1", 30.0, {})
    while not is_over:
        more, is_over = host.more("a", "next")
        items += more
    assert dict(items[-1].files) == {"made": b"m"}


def test_a_cancel_while_files_are_sent_keeps_the_code_from_running(rig: Rig) -> None:
    sandbox, cancelled = rig.sandbox(), threading.Event()
    sandbox.start()
    session = rig.fleet.find(sandbox.id)
    assert session
    exchange = session._exchange
    news = exchange._side.news  # type: ignore[union-attr]

    def cancelling_news() -> object:
        session.cancel(cancelled)
        return news()

    exchange._side.news = cancelling_news  # type: ignore[union-attr,method-assign]
    (sandbox.workspace.path / "in.txt").write_text("in")
    assert session.run("open('ran', 'w').close()", 30, cancelled).outputs == ()
    assert sandbox.run_code("import os; print(sorted(os.listdir()))").stdout == "['in.txt']\n"


def test_a_child_does_not_end_its_parents_fleet(rig: Rig) -> None:
    sandbox = rig.sandbox()
    sandbox.start()
    rig.fleet._owner_pid = os.getpid() + 1
    rig.fleet.disconnect()
    assert sandbox.is_alive
    rig.fleet._owner_pid = os.getpid()
