"""Used sandboxes with a fresh kernel and an empty folder, and variables that are brought from one into another."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from agent_tools.results.variables import SavedState
from agent_tools.runtime.runtime import Runtime
from agent_tools.sandbox import Sandbox

HURRIED = {"variables_timeout": 2.0, "max_variables_bytes": 2_000_000, "sync_timeout": 10.0}
TIGHT = {"max_variables": 10, "max_archive_bytes": 100_000, "variables_timeout": 8.0}

New = Callable[..., Sandbox]


@pytest.fixture(scope="module")
def used_sandboxes(runtime: Runtime, transport: str) -> Iterator[Callable[[str, int], Sandbox]]:
    """Sandboxes by their options, as JSON, and by number: tests have them one after another."""
    with ExitStack() as stack:

        @functools.cache
        def find(options: str, _number: int) -> Sandbox:
            cfg = {"transport": transport, **json.loads(options)}
            return stack.enter_context(Sandbox(cfg, runtime=runtime))

        yield find


@pytest.fixture
def new_sandbox(used_sandboxes: Callable[[str, int], Sandbox]) -> New:
    """Hands over sandboxes with a fresh kernel and an empty folder."""
    handed_over: Counter[str] = Counter()

    def make(**options: object) -> Sandbox:
        key = json.dumps(options, sort_keys=True)
        handed_over[key] += 1
        sandbox = used_sandboxes(key, handed_over[key])
        if sandbox.is_alive:
            sandbox.restart()
            sandbox.run_command("find . -mindepth 1 -delete")
        return sandbox

    return make


def moved(new: New, code: str, **options: object) -> tuple[Sandbox, SavedState]:
    """Run code in one sandbox, and bring its state into another."""
    first, second = new(**options), new(**options)
    execution = first.run_code(code)
    assert execution.ok, str(execution)
    saved = first.save(variables=True)
    first.restart()
    report = second.load(saved)
    assert not report.problem
    return second, saved


def missing(saved: SavedState) -> dict[str, str]:
    return {each.name: each.reason for each in saved.variables.missing}
