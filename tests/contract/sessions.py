"""Sessions on the engine and transport under test: fresh ones, and used ones with a fresh kernel."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_tools.engines.engine import Engine
from agent_tools.engines.isolation import Isolation
from agent_tools.limits import Limits
from agent_tools.machine.removal import empty_folder
from agent_tools.runtime.files.work_dir import prepare_work_dir
from agent_tools.runtime.sandbox.session_spec import SessionSpec
from agent_tools.runtime.session.session import Session
from agent_tools.runtime.transport.transport import TransportName
from tests.contract.images import image_of

PATIENCE = 3.0  # seconds a call may take beyond its time limit


def make_session(engine: Engine, transport: TransportName, work_dir: Path, **limits: float) -> Session:
    path = prepare_work_dir(work_dir, engine.guest(work_dir))
    return Session(engine, SessionSpec(image_of(engine), path, Isolation(), Limits(**limits), transport))


@pytest.fixture
def new_session(engine: Engine, transport: TransportName, work_dir: Path) -> Iterator[Callable[..., Session]]:
    sessions: list[Session] = []

    def make(**limits: float) -> Session:
        sessions.append(make_session(engine, transport, work_dir, **limits))
        return sessions[-1]

    yield make
    for session in sessions:
        session.close()


@pytest.fixture
def own_session(new_session: Callable[..., Session]) -> Session:
    return new_session()


@pytest.fixture(scope="module")
def used_sessions(engine: Engine, transport: TransportName) -> Iterator[Callable[..., Session]]:
    """Sessions that tests have one after another, by their limits: with a fresh kernel and an empty folder."""
    with contextlib.ExitStack() as stack:
        made: dict[frozenset[tuple[str, float]], Session] = {}

        def hand_over(**limits: float) -> Session:
            key = frozenset(limits.items())
            if key not in made:
                path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-tools-test-")))
                made[key] = stack.enter_context(contextlib.closing(make_session(engine, transport, path, **limits)))
            made[key].restart()
            empty_folder(made[key].spec.work_dir)
            return made[key]

        yield hand_over


@pytest.fixture
def session(used_sessions: Callable[..., Session]) -> Session:
    return used_sessions()


@pytest.fixture(scope="module")
def shared_session(engine: Engine, transport: TransportName) -> Iterator[Session]:
    """A session for all tests whose code leaves its kernel alive and nothing that another one's could meet."""
    path = Path(tempfile.mkdtemp(prefix="agent-tools-test-"))
    with contextlib.closing(make_session(engine, transport, path)) as session:
        session.run("0", 30)  # what it holds is the fixture's, and not the first test's
        yield session
    shutil.rmtree(path, ignore_errors=True)
