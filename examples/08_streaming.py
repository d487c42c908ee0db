"""Outputs while the code runs, and a stop in the middle: variables survive it."""

from agent_tools.results.execution import Stream
from agent_tools.tools import CodeInterpreter

CODE = """
import time
for done in range(1, 1000):
    print(f'step {done}', flush=True)
    time.sleep(0.1)
"""

with CodeInterpreter() as code_interpreter:
    for output in code_interpreter.stream(CODE):
        if isinstance(output, Stream):
            print(output.text, end="")
            if "step 5" in output.text:
                code_interpreter.interrupt()
        else:
            print(f"({type(output).__name__})")
    print(code_interpreter.call("done"))
