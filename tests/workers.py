"""Runs the tests in forks of the process that has collected them: `pytest -n 6`.

Collecting costs ten seconds of processor time, which each worker would need anew if it were a process of its own. So
the workers are forks. The numbers of all scopes, the units of work, lie in a pipe before the first fork; each worker
takes the next one from there, and sends what pytest's plugins are to hear to the process that it is a fork of.

A scope is a file, so that its sandboxes are made once. The contract suite is one file for all engines and transports:
each pair of them has a sandbox of its own, and is a scope. Files that build and remove images which share layers are
one scope: an engine that removes an image takes the layers out from under another that is being built. The longest
scopes come first, so that no worker is left with one when the others are done.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import re
from collections.abc import Iterator
from itertools import count
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

_FORK = multiprocessing.get_context("fork")
_PAIR = re.compile(r"\[(docker|process)-(sockets|stdio)\b")
_LONG = re.compile(
    r"tests/(contract|deploy|docker|browser|clients|wires)/|/test_(hostile_kernel|limits|house|script|chat|responses)\.py"
)
_LONGEST = re.compile(
    r"tests/contract/test_session|/test_(transports|faults|page|cli|hostile|limits|hostile_kernel|compose)\.py"
)
_BUILDING = re.compile(r"tests/docker/test_(cli|debian_packages)\.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("general")._addoption(
        "-n", dest="workers", metavar="WORKERS", type=int, default=0, help="run the tests in so many forks; 0: in none"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.workers:
        items.sort(key=lambda item: _turn(item.nodeid))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run all tests in workers, unless there are to be none or not all could be collected."""
    config = session.config
    if not config.option.workers or config.option.collectonly or session.testsfailed or not session.items:
        return None
    scopes: dict[str, list[pytest.Item]] = {}
    for item in session.items:
        scopes.setdefault(_scope(item.nodeid), []).append(item)
    queue, entry = os.pipe()
    os.write(entry, b"".join(number.to_bytes(2, "little") for number in range(len(scopes))))
    os.close(entry)
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    if reporter := config.pluginmanager.getplugin("terminalreporter"):
        reporter.showfspath = False  # tests of several files end side by side
    capture.stop_global_capturing()  # each worker has files of its own for it
    try:
        _lead(session, queue, list(scopes.values()))
    finally:
        os.close(queue)
        capture.start_global_capturing()
        capture.suspend_global_capture()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    return True


def _lead(session: pytest.Session, queue: int, scopes: list[list[pytest.Item]]) -> None:
    """Start the workers, and pass on to pytest's plugins what they report."""
    workers: dict[Connection, Any] = {}
    running: dict[Connection, str] = {}
    numbers = count()

    def start() -> None:
        reader, writer = _FORK.Pipe(duplex=False)
        workers[reader] = _FORK.Process(target=_work, args=(session, queue, scopes, writer, f"worker-{next(numbers)}"))
        workers[reader].start()
        writer.close()

    try:
        for _ in range(min(session.config.option.workers, len(scopes))):
            start()
        while workers:
            for reader in wait(list(workers)):
                assert isinstance(reader, Connection)
                try:
                    name, told = reader.recv()
                except EOFError:
                    worker = workers.pop(reader)
                    worker.join()
                    if worker.exitcode:
                        _report_lost(session, running.get(reader, "tests"), worker.exitcode)
                        start()
                else:
                    running[reader] = told.get("nodeid", running.get(reader))
                    _pass_on(session, name, told)
            if session.shouldfail:  # as after -x: nothing is left to be taken
                os.read(queue, 1 << 16)
    finally:
        for worker in workers.values():
            worker.terminate()
            worker.join()


def _pass_on(session: pytest.Session, name: str, told: dict[str, Any]) -> None:
    hook = session.config.hook
    if "report" in told:
        told = {"report": hook.pytest_report_from_serializable(config=session.config, data=told["report"])}
    getattr(hook, name)(**told)


def _report_lost(session: pytest.Session, nodeid: str, code: int) -> None:
    """Count a worker that ended before its time as a failure of the test that it ran last."""
    why = f"Its worker ended with exit code {code}; further tests of its file were not run."
    location = (nodeid.partition("::")[0], None, nodeid)
    lost = pytest.TestReport(nodeid, location, {}, "failed", why, "call")
    session.config.hook.pytest_runtest_logreport(report=lost)


class _Messenger:
    """Sends what happens in a worker to the process that it is a fork of."""

    def __init__(self, config: pytest.Config, line: Connection) -> None:
        self._config = config
        self._line = line

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._line.send(("pytest_runtest_logstart", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._line.send(("pytest_runtest_logreport", {"report": data}))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._line.send(("pytest_runtest_logfinish", {"nodeid": nodeid, "location": location}))


def _work(session: pytest.Session, queue: int, scopes: list[list[pytest.Item]], line: Connection, folder: str) -> None:
    """Run scope after scope, as a fork."""
    atexit._clear()  # what was registered before is for the other process
    config: Any = session.config
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(_Messenger(config, line))
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.start_global_capturing()
    capture.suspend_global_capture()
    paths = config._tmp_path_factory
    paths._basetemp = paths.getbasetemp() / folder
    paths._basetemp.mkdir(mode=0o700)
    item = None
    try:
        for following in _taken(queue, scopes):
            if item is not None:
                config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following
    finally:
        session._setupstate.teardown_exact(None)
        atexit._run_exitfuncs()


def _taken(queue: int, scopes: list[list[pytest.Item]]) -> Iterator[pytest.Item | None]:
    """Yield the tests of the scopes that are this worker's, and None."""
    while number := os.read(queue, 2):
        yield from scopes[int.from_bytes(number, "little")]
    yield None


def _turn(nodeid: str) -> int:
    """The place of a test's file in the order: files of one place keep their own order."""
    file = nodeid.partition("::")[0]
    return 0 if _LONGEST.search(file) else 1 if _LONG.search(file) else 2


def _scope(nodeid: str) -> str:
    """The name of the scope that a test belongs to."""
    file, _, test = nodeid.partition("::")
    if _BUILDING.search(file):
        return "derived images"
    pair = _PAIR.search(test) if file.startswith("tests/contract/") else None
    return f"{file} {pair[1]}-{pair[2]}" if pair else file
