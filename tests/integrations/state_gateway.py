"""A gateway for clients in other venvs: its model sets a variable, calls the client's function, and prints it.

`python -m tests.integrations.state_gateway` prints its URL, and serves until its input ends; arguments such as
`unknown_tools=ignore` are settings. It runs code in processes of its own: what counts here is which container a
request finds. A client that declares no function has only code run, and one whose tools are all its own is answered in
words, or has one of its commands called if it has a tool for such. With `speaks=messages` its upstream has Anthropic's
Messages API, and nothing else.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from typing import Any

from agent_tools.gateway.config import read_config
from agent_tools.runtime.runtime import Runtime
from agent_tools.testing import ScriptedCall, ScriptedReply, ScriptedServer
from tests.doubles import ProcessEngine
from tests.gateway.conftest import Gateway
from tests.recorder import Answer, Recorder, Seen

PRINT = "echo its own $((40 + 2))"
PASSED_ON = "The end: passed on"
COMMANDS: dict[str, dict[str, Any]] = {
    "exec_command": {"cmd": PRINT},
    "shell": {"command": ["sh", "-c", PRINT]},
    "Answer": {"text": PASSED_ON},
}
"""Tools of clients that run them themselves, and what they are called with: Codex's commands, instructor's answer."""


def answer(request: dict[str, Any]) -> ScriptedReply:
    """One step further than what the last user message was followed by."""
    messages, offered = request["messages"], {tool["function"]["name"] for tool in request.get("tools") or ()}
    if "python" not in offered:
        return _passed_on(messages, offered)
    start = max(n for n, message in enumerate(messages) if message["role"] == "user")
    done = [message for message in messages[start:] if message["role"] == "tool"]
    is_second = "again" in str(messages[start]["content"])
    if is_second:
        return ScriptedReply(text=_said(done)) if done else _code("print('x is', x + 1)")
    thoughts = {} if "no reasoning" in str(messages[start]["content"]) else {"reasoning": "Hm."}
    if "weather" in offered and not any("call_weather" in str(message.get("tool_call_id")) for message in done):
        if "set it" in str(done):
            return ScriptedReply(calls=[ScriptedCall("weather", {"city": "Ulm"}, "call_weather")], **thoughts)
        return _code("x = 41; print('set it')", **thoughts)
    if "x is" in str(done) or "Error" in str(done):
        return ScriptedReply(text=_said(done))
    if not done:
        return _code("x = 41; print('set it')", **thoughts)
    return _code("print('x is', x)")


def _passed_on(messages: list[dict[str, Any]], offered: set[str]) -> ScriptedReply:
    """Answer a client that runs its tools itself: with one of its commands, and with what that printed."""
    command = next((name for name in COMMANDS if name in offered), None)
    printed = re.findall(r"its own \d+", str([message for message in messages if message["role"] == "tool"]))
    if command is None or printed:
        return ScriptedReply(text=f"The end: {printed[-1]}" if printed else PASSED_ON)
    return ScriptedReply(calls=[ScriptedCall(command, COMMANDS[command])])


def _said(results: list[dict[str, Any]]) -> str:
    found = re.findall(r"x is \d+|NameError", str(results))
    return f"The end: {found[-1] if found else 'nothing'}"


def _code(text: str, **more: Any) -> ScriptedReply:
    return ScriptedReply(calls=[ScriptedCall("python", {"code": text})], **more)


def messages(seen: Seen) -> Answer:
    """Answer as a server that speaks Anthropic's Messages API."""
    if "/v1/messages" not in seen.target:
        return Answer(status=404)
    if "count_tokens" in seen.target:
        return Answer(b'{"input_tokens": 7}')
    if seen.json["model"] == "none":
        error = {"type": "not_found_error", "message": "model: none"}
        return Answer(json.dumps({"type": "error", "error": error}).encode(), status=404)
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None}
    usage, text = {"input_tokens": 7, "output_tokens": 3}, {"type": "text", "text": PASSED_ON}
    if not seen.json.get("stream"):
        return Answer(json.dumps({**head, "content": [text], "stop_reason": "end_turn", "usage": usage}).encode())
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**head, "content": [], "stop_reason": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {**text, "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": PASSED_ON}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]
    said = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return Answer(said.encode(), "text/event-stream")


def main() -> None:
    """Serve."""
    runtime = Runtime(ProcessEngine(), lambda packages: "none")
    settings = dict(setting.split("=") for setting in sys.argv[1:])
    speaks_messages = settings.pop("speaks", "") == "messages"
    server: Any = Recorder(messages) if speaks_messages else ScriptedServer({"m": answer})
    with tempfile.TemporaryDirectory() as folder, server as upstream:
        ours = {"upstream": upstream.base_url, "data_dir": folder, "shutdown_grace": "0.1", "pool": "0"}
        config = read_config({**settings, **ours})
        with Gateway(config, runtime, None) as gateway:
            print(f"{gateway.url}/v1", flush=True)
            sys.stdin.read()
        runtime.close_all()


if __name__ == "__main__":
    main()
