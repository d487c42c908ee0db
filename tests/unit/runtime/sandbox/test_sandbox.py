from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

import pytest

from agent_tools.results.execution import Stream
from tests.fake_kernel import FakeEngine, answer_honestly
from tests.under_attack import tools_to_attack


@pytest.fixture
def many_open_files() -> Iterator[None]:
    """More descriptors than select(2) can take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as opened:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        yield


@pytest.mark.usefixtures("many_open_files")
def test_a_process_with_very_many_open_files_can_start_sandboxes() -> None:
    with tools_to_attack() as new_tool:
        assert new_tool(FakeEngine(answer_honestly)).run("first").outputs == (Stream("stdout", "run 1\n"),)
