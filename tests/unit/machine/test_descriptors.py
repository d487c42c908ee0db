"""Room for descriptors: raised as far as needed, never lowered. Limits are a process's, so each test has one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agent_tools.machine.descriptors import MOST_DESCRIPTORS

RAISED = """
import resource, sys
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from agent_tools.machine.descriptors import raise_limit
raise_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("soft", "hard"), [(64, 4096), (1024, 2048), (2048, 2048)])
def test_the_soft_limit_becomes_the_hard_one(soft: int, hard: int) -> None:
    command = [sys.executable, "-c", RAISED, str(soft), str(hard)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert found == [str(hard), str(hard)]
    assert hard < MOST_DESCRIPTORS
