"""SandboxFusion's own client, and verl's own reward function, out of its wheel."""

from __future__ import annotations

import base64
import importlib.util
import os
import sys
import types
from importlib.metadata import version
from typing import Any

from sandbox_fusion import RunCodeRequest, RunJupyterRequest, run_code, run_jupyter, set_endpoint

for name in ("verl", "verl.utils", "verl.utils.reward_score"):
    sys.modules[name] = types.ModuleType(name)
place = "verl.utils.reward_score.sandbox_fusion"
folder = os.environ["VERL"]
spec: Any = importlib.util.spec_from_file_location(place, f"{folder}/__init__.py", submodule_search_locations=[folder])
verl: Any = importlib.util.module_from_spec(spec)
sys.modules[place] = verl
spec.loader.exec_module(verl)

HOST = os.environ["GATEWAY"].removeprefix("http://")
for part in ("", "/shared"):
    endpoint = f"http://key:{os.environ['GATEWAY_KEY']}@{HOST}/sandboxfusion{part}"
    set_endpoint(endpoint)
    file = {"in.txt": base64.b64encode(b"f").decode()}
    code = "print(input(), open('in.txt').read()); open('o', 'w').write('o')"
    ran = run_code(RunCodeRequest(code=code, language="python", stdin="s", files=file, fetch_files=["o"]))
    assert (ran.run_result.stdout, ran.run_result.return_code) == ("s f\n", 0), ran
    assert base64.b64decode(ran.files["o"]) == b"o", ran
    late = run_code(RunCodeRequest(code="while True: pass", language="python", run_timeout=1))
    assert late.run_result.status == "TimeLimitExceeded", late
    cells = run_jupyter(RunJupyterRequest(cells=["a = 1", "a", "1 / 0"]))
    assert cells.cells[1].display[0]["text/plain"] == "1", cells
    assert cells.cells[2].error[0]["ename"] == "ZeroDivisionError", cells
    cases = {"inputs": ["1\n", "2\n", "3\n"], "outputs": ["2\n", "4\n", "7\n"]}
    completion = "So:\n```python\nprint(2 * int(input()))\n```"
    score, found = verl.compute_score(f"{endpoint}/run_code", None, 1024, completion, cases)
    assert round(score, 2) == 0.67, found
    score, found = verl.compute_score(f"{endpoint}/run_code", None, 1024, "```python\n1 / 0\n```", cases)
    assert {each["status"] for each in found} == {"runtime_error"}, found
print(f"sandbox-fusion {version('sandbox-fusion')} and verl's reward function: work, sealed and shared")
