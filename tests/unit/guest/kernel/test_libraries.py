"""What the kernel changes in libraries."""

from __future__ import annotations

import pytest

from agent_tools.guest.kernel.libraries import GUEST, Warnings


def test_only_warnings_that_are_not_of_the_kernels_own_forks_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    passed: list[object] = []
    warnings = Warnings(lambda *given: passed.append(given[0]))
    warnings.show("use of fork() may lead to deadlocks", DeprecationWarning, f"{GUEST}/checkpoints/taking.py", 1)
    warnings.show("an adapter's", UserWarning, f"{GUEST}/kernel/libraries.py", 1)
    warnings.show("the code's", DeprecationWarning, "cell", 1)
    out, err = capsys.readouterr()
    assert (out + err, passed) == ("UserWarning: an adapter's\n", ["the code's"])
