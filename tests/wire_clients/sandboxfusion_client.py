"""SandboxFusion's own client, and verl's own request."""

from __future__ import annotations

import base64
import os
from importlib.metadata import version

import requests
from sandbox_fusion import RunCodeRequest, RunJupyterRequest, run_code, run_jupyter, set_endpoint

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
    payload = {
        "compile_timeout": 10,
        "run_timeout": 10,
        "code": "print(6 * 7)",
        "stdin": None,
        "memory_limit_MB": 1024,
        "language": "python",
        "files": {},
        "fetch_files": [],
    }
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    told = requests.post(f"{endpoint}/run_code", headers=headers, json=payload, timeout=60).json()
    assert told["run_result"]["stdout"] == "42\n", told
print(f"sandbox-fusion {version('sandbox-fusion')}: works, sealed and shared; so does verl's request")
