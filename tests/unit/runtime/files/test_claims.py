"""Claims on work_dirs: no live sandbox gets a folder that another one's code could swap."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_tools.engines.isolation import Isolation
from agent_tools.errors import EngineError, InvalidParams
from agent_tools.limits import Limits
from agent_tools.machine.private_folder import private_base, remove_stale_run_dirs
from agent_tools.runtime.files.claims import Claim
from agent_tools.runtime.files.work_dir import prepare_work_dir
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.session.session import Session
from tests.doubles import ProcessEngine

INSIDE = "lies inside a folder of a live sandbox.*Give a folder beside that one, or close that sandbox first"
HOLDS = "holds a folder of a live sandbox.*Give a folder beside that one, or close that sandbox first"


@pytest.fixture(autouse=True)
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The place of claims; none is there yet."""
    with tempfile.TemporaryDirectory(prefix="at-", dir="/tmp") as folder:
        monkeypatch.setenv("AGENT_TOOLS_RUN_DIR", folder)
        yield private_base()


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "top" / "a" / "b").mkdir(parents=True)
    (tmp_path / "topmost").mkdir()
    return tmp_path / "top"


@pytest.mark.parametrize("below", ["a", "a/b", "none", "a/none/b"])
def test_a_folder_inside_one_that_is_held_is_refused(top: Path, below: str) -> None:
    held = Claim(top)
    with pytest.raises(InvalidParams, match=INSIDE):
        Claim(top / below)
    held.release()
    Claim(top / below).release()


@pytest.mark.parametrize("below", ["a", "a/b"])
def test_a_folder_that_holds_one_that_is_held_is_refused(top: Path, below: str) -> None:
    held = Claim(top / below)
    with pytest.raises(InvalidParams, match=HOLDS):
        Claim(top)
    held.release()
    Claim(top).release()


def test_folders_beside_each_other_and_the_same_one_are_given(top: Path, base: Path) -> None:
    claims = [Claim(top / "a" / "b"), Claim(top / "a" / "b"), Claim(top.parent / "topmost")]
    for claim in claims:
        claim.release()
        claim.release()
    assert list(base.iterdir()) == []


WAYS: dict[str, Callable[[Path], Path]] = {
    "a link the code planted": lambda top: top / "planted",
    "what a link the code planted leads to": lambda top: top / "planted" / "sub",
    "a link of the caller's into it": lambda top: top.parent / "way" / "sub",
    "another way to it": lambda top: top.parent / "alias" / "top" / "a",
    "a way in and out again": lambda top: top.parent / "through",
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_a_folder_is_known_by_its_way_and_not_by_its_name(top: Path, way: Callable[[Path], Path]) -> None:
    (top.parent / "elsewhere" / "sub").mkdir(parents=True)
    (top / "planted").symlink_to(top.parent / "elsewhere")
    (top.parent / "way").symlink_to(top / "planted")
    (top.parent / "alias").symlink_to(top.parent)
    (top.parent / "through").symlink_to("top/planted/../elsewhere")
    held = Claim(top)
    with pytest.raises(InvalidParams, match=INSIDE):
        Claim(way(top))
    held.release()


def test_a_refused_claim_holds_nothing(top: Path) -> None:
    held = Claim(top / "a")
    with pytest.raises(InvalidParams):
        Claim(top)
    held.release()
    Claim(top / "a" / "b").release()


def test_a_way_in_a_circle_is_told(top: Path, base: Path) -> None:
    (top / "loop").symlink_to("loop")
    with pytest.raises(EngineError, match="cannot be claimed"):
        Claim(top / "loop")
    assert list(base.iterdir()) == []


def test_no_folder_is_made_inside_one_that_is_held(top: Path) -> None:
    me = ProcessEngine().guest()
    (top.parent / "elsewhere").mkdir()
    (top / "planted").symlink_to(top.parent / "elsewhere")
    held = Claim(top)
    for path in ("a/made", "planted/made", "a"):
        with pytest.raises(InvalidParams, match=INSIDE):
            prepare_work_dir(top / path, me)
    assert prepare_work_dir(top, me) == top
    assert prepare_work_dir(top.parent, me) == top.parent
    held.release()
    assert not list(top.parent.rglob("made"))
    assert prepare_work_dir(top / "a" / "made", me).is_dir()


HOLD = """
import sys
from pathlib import Path
from agent_tools.runtime.files.claims import Claim
Claim(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def another_process(path: Path) -> Iterator[None]:
    """Holds a folder, and is then killed."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            process.kill()


def test_claims_count_for_other_processes_for_as_long_as_theirs_lives(top: Path, base: Path) -> None:
    with another_process(top), pytest.raises(InvalidParams, match=INSIDE):
        Claim(top / "a")
    (left,) = base.iterdir()
    Claim(top / "a").release()
    assert remove_stale_run_dirs() == [left]
    assert list(base.iterdir()) == []


def test_what_is_no_claim_is_passed_over(top: Path, base: Path) -> None:
    held = Claim(top)
    (path,) = base.iterdir()
    path.rename(path.with_suffix(".part"))
    (base / f"claim-{os.getpid()}-1-x").write_text("{nonsense")
    (base / "notes").write_text("[[1, 1]]")
    Claim(top / "a").release()
    held.release()


@pytest.fixture
def new_session() -> Iterator[Callable[..., Session]]:
    with contextlib.ExitStack() as stack:

        def make(path: Path, *, shares_files: bool = True) -> Session:
            spec = SessionSpec("none", path, Isolation(), Limits())
            session = Session(ProcessEngine(shares_files=shares_files), spec)
            stack.callback(session.close)
            return session

        yield make


def test_a_session_holds_its_folder_while_it_has_a_sandbox(new_session: Callable[..., Session], top: Path) -> None:
    outer, inner = new_session(top), new_session(top / "a")
    outer.open()
    with pytest.raises(InvalidParams, match=INSIDE):
        inner.run("1", 30)
    assert inner.container is None
    outer.restart()
    with pytest.raises(InvalidParams, match=INSIDE):
        inner.open()
    outer.close()
    inner.open()
    with pytest.raises(InvalidParams, match=HOLDS):
        new_session(top).open()


def test_a_folder_that_is_not_mounted_is_not_held(new_session: Callable[..., Session], top: Path) -> None:
    new_session(top, shares_files=False).open()
    new_session(top / "a").open()
