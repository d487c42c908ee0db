"""A gateway for clients in other venvs: its model sets a variable, calls the client's function, and prints it.

`python -m tests.integrations.state_gateway` prints its URL, and serves until its input ends. It runs code in processes
of its own: what counts here is which container a request finds.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from agent_tools.gateway.config import GatewayConfig
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedCall, ScriptedReply, ScriptedServer
from tests.doubles import ProcessEngine
from tests.gateway.conftest import Gateway


def answer(request: dict[str, Any]) -> ScriptedReply:
    """One step further than what the last user message was followed by."""
    messages = request["messages"]
    start = max(n for n, message in enumerate(messages) if message["role"] == "user")
    done = [message for message in messages[start:] if message["role"] == "tool"]
    is_second = "again" in str(messages[start]["content"])
    if is_second:
        return ScriptedReply(text=_said(done)) if done else _code("print('x is', x + 1)")
    thoughts = {} if "no reasoning" in str(messages[start]["content"]) else {"reasoning": "Hm."}
    if not any("call_weather" in str(message.get("tool_call_id")) for message in done):
        if "set it" in str(done):
            return ScriptedReply(calls=[ScriptedCall("weather", {"city": "Ulm"}, "call_weather")], **thoughts)
        return _code("x = 41; print('set it')", **thoughts)
    if "x is" in str(done) or "Error" in str(done):
        return ScriptedReply(text=_said(done))
    return _code("print('x is', x)")


def _said(results: list[dict[str, Any]]) -> str:
    found = re.findall(r"x is \d+|NameError", str(results))
    return f"The end: {found[-1] if found else 'nothing'}"


def _code(text: str, **more: Any) -> ScriptedReply:
    return ScriptedReply(calls=[ScriptedCall("python", {"code": text})], **more)


def main() -> None:
    """Serve."""
    runtime = Runtime(ProcessEngine(), lambda packages: "none")
    with tempfile.TemporaryDirectory() as folder, ScriptedServer({"m": answer}) as upstream:
        config = GatewayConfig(upstream.base_url, data_dir=Path(folder), shutdown_grace=0.1, pool=0)
        with Gateway(config, runtime, None) as gateway:
            print(f"{gateway.url}/v1", flush=True)
            sys.stdin.read()
        runtime.close_all()


if __name__ == "__main__":
    main()
