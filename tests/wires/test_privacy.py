"""Privacy at the wires: logs and metrics have nothing of what users and code say, and no series for each of them."""

from __future__ import annotations

import logging

import httpx
import pytest

from tests.wires.conftest import Served
from tests.wires.test_e2b import Client


def use(served: Served, name: str) -> list[str]:
    """Use each wire with texts, files, sessions and users of this name; return the answers."""
    code = f"print({name!r}.upper())  # {name}"
    sandbox = Client(served).create(metadata={name: name}, envVars={"SECRET": name})
    plain, url = served.client(key="plain"), served.gateway.url
    answers = [
        sandbox.ask("POST", "/execute", json={"code": code}),
        sandbox.ask("POST", "/files", params={"path": f"{name}.txt"}, files={"file": (name, name.encode())}),
        sandbox.ask("GET", "/files", params={"path": f"{name}/none.txt"}),
        plain.post(f"{url}/librechat/exec", json={"lang": "py", "code": code, "runtime_session_hint": name}),
        plain.get(f"{url}/librechat/download/path-{name[-1]}/none"),
        plain.post(f"{url}/sandboxfusion/run_code", json={"language": "python", "code": code, "stdin": name}),
        plain.post(f"{url}/sandboxfusion/run_code", json={"language": [name], "code": code}),
        served.client(name, name).post("/execute", json={"command": f"echo {name}", "cwd": name}),
        served.client(name, name).post("/files/write", json={"path": f"{name}.txt", "content": name}),
        served.client(name, name).get(f"/files/serve/home/user/{name}.txt"),
        plain.get(f"{url}/vllm/path-{name[-1]}"),
        plain.get(f"{url}/terminal/path-{name[-1]}", headers={"Authorization": f"Bearer {name}"}),
    ]
    return [each.text for each in answers]


def test_what_users_and_code_say_is_in_no_log_or_metric_and_makes_no_series(
    served: Served, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("httpx", "httpx2", "httpcore"):  # the clients'
        logging.getLogger(name).setLevel(logging.WARNING)
    assert sum("CANARY-1" in each for each in use(served, "canary-1")) == 3
    _, before = (httpx.get(f"{served.gateway.url}/metrics").text for _ in range(2))  # the first one counts, too
    use(served, "canary-2")
    after = httpx.get(f"{served.gateway.url}/metrics").text
    assert len(after.splitlines()) == len(before.splitlines())
    assert "path-" not in after
    seen = after + capfd.readouterr().err
    seen += "\n".join(record.getMessage() + str(record.exc_info) for record in caplog.records)
    for secret in ("canary", *served.keys.values()):
        assert secret not in seen.lower(), [line for line in seen.lower().splitlines() if secret in line]
    assert 'route="exec"' in after
