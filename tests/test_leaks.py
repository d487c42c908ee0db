import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.leaks import ALL_KINDS, ROOT, Held, Scratch, nothing_left
from tests.nursery import nursery


@contextlib.contextmanager
def a_process() -> Iterator[None]:
    process = subprocess.Popen(["sleep", "600"])
    yield
    process.kill()
    process.wait()


@contextlib.contextmanager
def a_sandbox() -> Iterator[None]:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            newborn = nursery().fork(["stdio"], {**os.environ, "AGENT_TOOLS_WORK_DIR": "/tmp"}, theirs)
        yield
        newborn.send_signal(signal.SIGKILL)
        newborn.wait(10)


@contextlib.contextmanager
def a_thread() -> Iterator[None]:
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="forgotten")
    thread.start()
    yield
    done.set()
    thread.join()


@contextlib.contextmanager
def a_file() -> Iterator[None]:
    with open("/etc/hostname"):
        yield


@contextlib.contextmanager
def a_stray(folder: Path) -> Iterator[None]:
    folder.mkdir()
    yield
    folder.rmdir()


LEAKS: dict[str, Callable[[Scratch], contextlib.AbstractContextManager[None]]] = {
    "sandbox: ": lambda scratch: a_sandbox(),
    "sleep 600": lambda scratch: a_process(),
    "thread: forgotten": lambda scratch: a_thread(),
    "descriptor: /etc/hostname": lambda scratch: a_file(),
    "tmp/left-over": lambda scratch: a_stray(scratch.path / "tmp" / "left-over"),
    "left-in-the-checkout": lambda scratch: a_stray(ROOT / "left-in-the-checkout"),
}


@pytest.mark.parametrize("name", LEAKS)
def test_what_is_left_is_named(scratch: Scratch, name: str) -> None:
    with contextlib.ExitStack() as stack:
        check = nothing_left(scratch, "it", with_containers=False, kinds=ALL_KINDS, patience=0.2)
        check.__enter__()
        stack.enter_context(LEAKS[name](scratch))
        with pytest.raises(AssertionError, match=f"it left behind: .*{name}"):
            check.__exit__(None, None, None)


def test_what_was_there_before_and_what_is_gone_in_time_is_no_leak(scratch: Scratch) -> None:
    with a_thread(), nothing_left(scratch, "it", with_containers=False, kinds=ALL_KINDS):
        threading.Timer(0.2, print).start()


def test_helpers_that_a_lasting_thread_began_meanwhile_are_not_left_behind() -> None:
    lasting, helped = Counter({"agent-tools-events": 1}), Counter({"agent-tools-events": 1, "agent-tools-pages_0": 1})
    assert Held({"thread": helped}).beyond(Held({"thread": lasting})) == []
    left = ["thread: agent-tools-events", "thread: agent-tools-pages_0"]
    assert Held({"thread": helped}).beyond(Held({"thread": Counter()})) == left
    assert Held({"thread": helped - lasting}).beyond(Held({"thread": lasting})) == left[1:]
