"""The cost of the loop between model and tools in each round, beside the model's and the sandbox's own time.

    .venv/bin/python benchmarks/turn.py [--rounds 40]

A scripted model calls the code interpreter in every round; the baseline is the same code run directly in the same
sandbox. Both run in turns, and medians are taken over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from agent_tools.agents import Assistant
from agent_tools.testing import ScriptedCall, ScriptedModel, ScriptedReply
from agent_tools.tools import CodeInterpreter

CODE = "print(1)"
CALL = ScriptedReply(calls=[ScriptedCall("code_interpreter", {"code": CODE})])


def direct(tool: CodeInterpreter, times: int) -> list[float]:
    """Seconds of each of so many calls."""
    found = []
    for _ in range(times):
        started = time.perf_counter()
        tool.call({"code": CODE})
        found.append(time.perf_counter() - started)
    return found


def in_a_turn(tool: CodeInterpreter, times: int) -> float:
    """Seconds of one round, over a run of so many."""
    agent = Assistant([tool], ScriptedModel([CALL] * times + ["done"]), max_rounds=times + 1)
    started = time.perf_counter()
    agent.run_nonstream([{"role": "user", "content": "count"}])
    return (time.perf_counter() - started) / times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="rounds of one run (default 40)")
    rounds = parser.parse_args().rounds
    with (
        tempfile.TemporaryDirectory(prefix="agent-tools-bench-") as folder,
        CodeInterpreter({"work_dir": str(Path(folder, "work"))}) as tool,
    ):
        tool.call({"code": CODE})
        alone, looped = [], []
        for _ in range(5):
            alone += direct(tool, rounds)
            looped.append(in_a_turn(tool, rounds))
    base, whole = statistics.median(alone), statistics.median(looped)
    print(f"the call alone      {base * 1000:6.2f} ms")
    print(f"a round of an agent {whole * 1000:6.2f} ms  {whole / base:.2f}x  ({(whole - base) * 1000:+.2f} ms)")


if __name__ == "__main__":
    main()
