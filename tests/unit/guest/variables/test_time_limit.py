"""An alarm at any line while a variable is saved or loaded: it costs that variable, whole, and nothing else."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from agent_tools.guest.files.content import Content
from agent_tools.guest.variables import saving
from agent_tools.guest.variables.loading import Loading
from agent_tools.guest.variables.record_buffer import packed
from agent_tools.guest.variables.saving import Worker

pytestmark = pytest.mark.timeout(0)  # it would set the alarm that is under test
FOLDER = os.path.dirname(saving.__file__)


class Fails:
    """A value that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise ValueError


class Alarms:
    """Rings at one line of the modules of variables, counted while an alarm is set, as the alarm itself may."""

    def __init__(self, line: int) -> None:
        self.left = line

    def trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        if event == "line" and signal.getitimer(signal.ITIMER_REAL)[0]:
            self.left -= 1
            if self.left == 0:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.raise_signal(signal.SIGALRM)
        return self.trace

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self.trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    gc.enable()


def saved(line: int) -> tuple[bytes, int]:
    """Save three variables with an alarm at this line; return the archive, and how many lines were left to go."""
    part = [1]
    variables = [("a", [part]), ("failing", Fails()), ("b", [part, part])]
    stream: Any = io.BytesIO()
    reader, reports = os.pipe()
    connected = SimpleNamespace(makefile=lambda _mode: stream)
    bounds = saving.Bounds(10_000_000, 1_000.0, 100)
    of: Any = SimpleNamespace(
        connected=connected,
        namespace={"__name__": "__main__"},
        variables=variables,
        bounds=bounds,
        bytes_left=bounds.bytes,
        seconds_left=bounds.seconds,
    )
    worker, alarms = Worker(of, reports), Alarms(line)
    with alarms:
        worker.run(0)
    os.close(reader)
    os.close(reports)
    content = Content(stream)
    content.write(packed({"missing": []}))
    content.end()
    return stream.getvalue(), alarms.left


def loaded(archive: bytes, line: int) -> tuple[dict[str, Any], list[str], dict[str, str], int]:
    """Load an archive with an alarm at this line."""
    stream: Any = io.BytesIO(archive)
    namespace: dict[str, Any] = {}
    loading, alarms = Loading(Content(stream), namespace, 1_000.0), Alarms(line)
    with alarms:
        report = loading.run()
    return namespace, report["kept"], dict(report["missing"]), alarms.left


def test_an_alarm_while_a_variable_is_saved_costs_that_one() -> None:
    line, left = 1, 0
    while left <= 0:
        archive, left = saved(line)
        namespace, kept, missing, _ = loaded(archive, 0)
        assert not missing
        assert kept in (["a", "b"], ["a"], ["b"])
        assert namespace.items() <= {"a": [[1]], "b": [[1], [1]]}.items()
        line += 1
    assert kept == ["a", "b"]
    assert line > 5


def test_an_alarm_while_a_variable_is_loaded_costs_that_one() -> None:
    archive, _ = saved(0)
    line, left = 1, 0
    while left <= 0:
        namespace, kept, missing, left = loaded(archive, line)
        assert set(namespace) == set(kept)
        assert set(kept) ^ set(missing) == {"a", "b"}
        assert "took too long" in missing.get("a", "took too long")
        line += 1
    assert kept == ["a", "b"]
    assert line > 5
