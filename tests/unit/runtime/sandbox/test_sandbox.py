from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent_tools.engines.guest import Guest
from agent_tools.engines.isolation import Isolation
from agent_tools.errors import SandboxStartError
from agent_tools.limits import Limits
from agent_tools.results.execution import Stream
from agent_tools.runtime.sandbox.sandbox import refuse_access_lists
from agent_tools.runtime.sandbox.session_spec import SessionSpec
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


@pytest.mark.needs_root(reason="only root's folders are opened by access lists")
@pytest.mark.parametrize("isolation", [Isolation(isolation="gvisor"), Isolation(runtime="runsc"), Isolation()])
def test_a_folder_of_root_is_refused_under_gvisor_which_ignores_access_lists(
    tmp_path: Path, isolation: Isolation
) -> None:
    spec, guest = SessionSpec("none", tmp_path, isolation, Limits()), Guest((12345, 12345), (12345, 12345))
    under_gvisor = replace(guest, runtimes=("runsc",))
    with pytest.raises(SandboxStartError, match=f"chown -R 12345 {tmp_path}"):
        refuse_access_lists(spec, under_gvisor)
    refuse_access_lists(replace(spec, isolation=Isolation()), replace(guest, runtimes=("runc",)))
    os.chown(tmp_path, 12345, 12345)
    refuse_access_lists(spec, under_gvisor)
