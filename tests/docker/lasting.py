"""Tools and sandboxes that tests have one after another, since a start costs more than most tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agent_tools import Sandbox
from agent_tools.runtime.runtime import Runtime
from agent_tools.tools import CodeInterpreter


@contextmanager
def lasting_tool(runtime: Runtime, cfg: dict[str, Any] | None = None, **given: Any) -> Iterator[CodeInterpreter]:
    """A tool on a folder of its own; of what it holds nothing counts as a test's, and at the end nothing is left."""
    with tempfile.TemporaryDirectory(prefix="agent-tools-test-") as path:
        with CodeInterpreter({"work_dir": path, **(cfg or {})}, runtime=runtime, **given) as tool:
            tool.call("0")  # what it holds is the fixture's, and not the first test's
            yield tool
        runtime.settle()


def begin_anew(sandbox: Sandbox) -> None:
    """Give it a fresh kernel and an empty folder; one that has ended begins so by itself."""
    if sandbox.is_alive:
        sandbox.restart()
        sandbox.run_command("find . -mindepth 1 -delete")
