"""Open WebUI with `api_type: responses`: the requests that its source builds, items with its own fields among them."""

import json
import urllib.request
from typing import Any

from outcome import AGAIN, BASE_URL, FIRST, KEY, MODEL, TOOL, report


def ask(items: list[dict[str, Any]]) -> dict[str, Any]:
    body = {"model": MODEL, "input": items, "tools": [TOOL], "store": False, "stream": False}
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json", "X-OpenWebUI-Chat-Id": "chat-1"}
    request = urllib.request.Request(f"{BASE_URL}/responses", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def asked(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


first = ask([asked(FIRST)])
told = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text_of(first)}]}]
thought = [
    {**item, "started_at": 1.5, "ended_at": 2.5, "duration": 1}
    for item in first["output"]
    if item["type"] == "reasoning"
]
second = ask([asked(FIRST), *thought, *told, asked(AGAIN)])
report(text_of(first), text_of(second))
