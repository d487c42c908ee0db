"""Pages that are written between two copies: found, and copied ahead of the next write."""

from __future__ import annotations

import mmap
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agent_tools.guest.checkpoints import hot_pages
from agent_tools.guest.checkpoints.hot_pages import copy_ahead, own_pages

PAGE = mmap.PAGESIZE
WRITTEN = 200  # pages


@contextmanager
def copied() -> Iterator[None]:
    """Share all pages with a fork, for a while."""
    ready, done = os.pipe()
    child = os.fork()
    if not child:
        os.close(done)
        os.read(ready, 1)
        os._exit(0)
    os.close(ready)
    try:
        yield
    finally:
        os.close(done)
        os.waitpid(child, 0)


@pytest.fixture
def memory() -> Iterator[mmap.mmap]:
    with mmap.mmap(-1, 1000 * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        write(memory, 1000)
        yield memory


def write(memory: mmap.mmap, pages: int) -> int:
    """Write to every page; return how often that had to wait for the page."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for number in range(pages):
        memory[number * PAGE] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_what_was_written_beside_a_copy_is_found_and_no_write_waits_after_it_is_copied_ahead(
    memory: mmap.mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("MAX_SEARCHED", "MAX_PAGES"):  # this process may be a large one
        monkeypatch.setattr(hot_pages, limit, 2**40)
    with copied():
        write(memory, WRITTEN)
        pages = own_pages()
        assert any(WRITTEN * PAGE <= size < 1000 * PAGE for _, size in pages)
        with copied():
            assert write(memory, WRITTEN) >= WRITTEN
        with copied():
            copy_ahead(pages)
            assert write(memory, WRITTEN) < WRITTEN // 10
            assert write(memory, 1000) > 700


def test_pages_that_are_many_are_data_and_are_not_copied_ahead(
    memory: mmap.mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot_pages, "MAX_PAGES", 900)
    assert own_pages() == []
    monkeypatch.setattr(hot_pages, "MAX_PAGES", 2**40)
    monkeypatch.setattr(hot_pages, "MAX_MAPPING", 999 * PAGE)
    assert not any(size >= 1000 * PAGE for _, size in own_pages())


def test_pages_that_are_gone_are_left_out() -> None:
    with mmap.mmap(-1, PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        write(memory, 1)
        pages = own_pages()
    copy_ahead(pages)


def test_nothing_is_found_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr("builtins.open", refuse)
    assert own_pages() == []
