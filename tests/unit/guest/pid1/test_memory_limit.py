"""The memory limit that PID 1 enforces under gVisor, on a tree of files like gVisor's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_tools.guest.gvisor import GVISOR
from agent_tools.guest.pid1.memory_limit import FORK, MEMINFO, USAGE, MemoryLimit, pause
from agent_tools.guest.wire.gvisor import code_limit, engine_limit

MIB = 1024**2
LIMIT = 512 * MIB
HOLDER = "b = bytearray(b'x') * {size}; print(flush=True); input()"


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Return the root of a sandbox under gVisor that uses little memory."""
    for name, text in (
        (GVISOR, ""),
        (MEMINFO, meminfo(LIMIT)),
        (USAGE, "1"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return f"{tmp_path}/"


@pytest.fixture
def small_and_large(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start two processes, the second with more memory, which are all that is seen."""
    held = [
        subprocess.Popen(
            [sys.executable, "-c", HOLDER.format(size=size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for size in (1, 128 * MIB)
    ]
    for each in held:
        assert each.stdout
        each.stdout.readline()
    seen = {each.pid: None for each in held}
    monkeypatch.setattr("agent_tools.guest.pid1.memory_limit.processes", lambda _but: seen)
    yield held
    for each in held:
        each.kill()
        each.communicate()


def meminfo(limit: int, mapped: int = 0) -> str:
    return f"MemTotal: {engine_limit(limit) // 1024} kB\nMemFree: 1 kB\nMapped: {mapped // 1024} kB\n"


def used(root: str, size: int) -> None:
    Path(root, USAGE).write_text(str(size))


def gvisors(root: str, signal_others: Callable[[int], None] = lambda _number: None) -> MemoryLimit:
    return MemoryLimit(signal_others, root, has_pid_1=True, in_files=int)


@pytest.mark.parametrize("memory", [128 * MIB, LIMIT, 2**40 + 1])
def test_the_engines_limit_leaves_the_code_its_own(memory: int) -> None:
    assert memory - 1 <= code_limit(engine_limit(memory)) <= memory
    assert code_limit(0) == 0


@pytest.mark.parametrize("total", [128 * MIB, 320 * MIB, 1024 * MIB])
def test_code_has_some_memory_where_nobody_has_widened_the_engines_limit(total: int) -> None:
    assert total // 4 <= code_limit(total) < total


def test_over_the_limit_the_largest_process_ends_and_is_known_as_such(
    root: str, small_and_large: list[subprocess.Popen[bytes]]
) -> None:
    small, large = small_and_large
    signalled: list[tuple[int, int | None]] = []
    limit = gvisors(root, lambda number: signalled.append((number, large.poll())))
    used(root, LIMIT + MIB)
    limit.look(())
    assert signalled[0] == (signal.SIGSTOP, None)
    assert signalled[1][0] == signal.SIGCONT
    assert large.wait() == -signal.SIGKILL
    assert small.poll() is None
    assert limit.forget(large.pid)
    assert not limit.forget(large.pid)
    assert not limit.forget(small.pid)


def test_copies_end_before_a_kernel_that_fits_without_them(
    root: str, small_and_large: list[subprocess.Popen[bytes]]
) -> None:
    copy, kernel = small_and_large
    limit = gvisors(root)
    used(root, LIMIT + MIB)
    limit.look({copy.pid})
    assert copy.wait() == -signal.SIGKILL
    assert kernel.poll() is None
    assert not limit.forget(copy.pid)


def test_a_killed_process_has_time_to_let_go_while_the_usage_does_not_rise_much(
    root: str, small_and_large: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_tools.guest.pid1.memory_limit.PATIENCE", 3600)
    monkeypatch.setattr("agent_tools.guest.pid1.memory_limit.CHECK_SECONDS", (0, 0))
    small, large = small_and_large
    limit = gvisors(root)
    used(root, LIMIT + 2 * MIB)
    limit.look(())
    assert large.wait() == -signal.SIGKILL
    for more in (2 * MIB + FORK, MIB, MIB + FORK):
        used(root, LIMIT + more)
        limit.look(())
    assert small.poll() is None
    used(root, LIMIT + 2 * MIB + FORK)  # more than FORK above the least
    limit.look(())
    assert small.wait() == -signal.SIGKILL


def test_mapped_files_do_not_count(root: str, small_and_large: list[subprocess.Popen[bytes]]) -> None:
    small, large = small_and_large
    Path(root, MEMINFO).write_text(meminfo(LIMIT, mapped=2 * MIB))
    limit = gvisors(root)
    used(root, LIMIT + MIB)
    limit.look(())
    assert [each.poll() for each in small_and_large] == [None, None]
    used(root, LIMIT + 3 * MIB)
    gvisors(root).look(())
    assert large.wait() == -signal.SIGKILL
    assert small.poll() is None


def test_copies_that_share_what_they_hold_stay(root: str, small_and_large: list[subprocess.Popen[bytes]]) -> None:
    copy, kernel = small_and_large
    small = 128 * MIB
    Path(root, MEMINFO).write_text(meminfo(small))
    limit = gvisors(root)
    used(root, small + MIB)
    limit.look({copy.pid})
    assert kernel.wait() == -signal.SIGKILL
    assert copy.poll() is None


def test_nothing_ends_within_the_limit_on_linux_or_in_a_branch(
    root: str, small_and_large: list[subprocess.Popen[bytes]]
) -> None:
    gvisors(root).look(())
    used(root, LIMIT + MIB)
    MemoryLimit(lambda _number: None, root).look(())
    os.unlink(f"{root}{GVISOR}")
    on_linux = gvisors(root)
    on_linux.look(())
    assert on_linux.seconds() == []
    assert [each.poll() for each in small_and_large] == [None, None]


def test_looks_are_rare_while_there_is_room_and_dense_close_to_the_limit() -> None:
    assert [pause(free) for free in (2**40, 1024**3, 0, -1)] == [1.0, 0.5, 0.025, 0.025]
