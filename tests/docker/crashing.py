"""Sandboxes whose code ends its kernel, with short graces."""

from __future__ import annotations

from agent_tools import Sandbox
from agent_tools.results.execution import Died
from agent_tools.results.variables import Variables

CRASH = "import os; os._exit(1)"
LIMITS = {"interrupt_grace": 0.3, "kill_grace": 0.3, "restart_timeout": 30}


def run(sandbox: Sandbox, *cells: str) -> None:
    for cell in cells:
        execution = sandbox.run_code(cell)
        assert execution.ok, execution.error


def crash(sandbox: Sandbox, code: str = CRASH) -> Variables:
    error = sandbox.run_code(code, timeout=5).error
    assert isinstance(error, Died), error
    return error.variables
