"""SandboxFusion's form of a cell."""

from __future__ import annotations

from agent_tools.results.execution import Execution, Omitted, Restarted, Stream
from agent_tools.wires.sandboxfusion import cell_of


def test_what_was_left_out_and_a_kernel_that_had_ended_are_told() -> None:
    cut = Omitted("5 characters", is_text=True)
    told = cell_of(Execution((Restarted("it died"), Stream("stdout", "a"), cut, Stream("stderr", "e"))))
    assert told["stdout"] == "a\n[... 5 characters left out ...]\n"
    assert "it died" in told["stderr"]
    assert told["stderr"].endswith("\ne")
