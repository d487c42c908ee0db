"""A scripted model: lines `CALL name {json}` of the last user message are its calls, one a round."""

from __future__ import annotations

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SALES = """import matplotlib.pyplot as plt, pandas as pd
sales = pd.DataFrame({"north": [12, 15, 19, 24], "south": [20, 18, 17, 21]}, index=list("1234"))
sales.plot.bar(title="Sales by quarter", rot=0)
plt.savefig("sales.png")
sales.to_csv("sales.csv")
sales.sum()"""
STORIES = {
    "Plot the sales": (
        [("run_python", {"code": SALES}), ("display_file", {"path": "sales.png"})],
        "The north sold 70 over the year and the south 76. The north doubled, and passed the south in the third. "
        "`sales.png` is shown beside this chat, and the numbers are in `sales.csv`.",
    )
}
"""What the model does by itself when a message begins so, and what it says then."""


class Model(BaseHTTPRequestHandler):
    """Answers as OpenAI's chat completions, streamed or not, and writes each request to a file."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self._send(json.dumps({"object": "list", "data": [{"id": "scripted", "object": "model", "owned_by": "x"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with open(sys.argv[2], "a") as log:
            log.write(json.dumps(body) + "\n")
        delta, reason = _answer(body)
        base = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
        if not body.get("stream"):
            message = {"index": 0, "message": delta, "finish_reason": reason}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            self._send(json.dumps({**base, "object": "chat.completion", "choices": [message], "usage": usage}))
            return
        pieces = [
            {"index": 0, "delta": delta, "finish_reason": None},
            {"index": 0, "delta": {}, "finish_reason": reason},
        ]
        lines = [f"data: {json.dumps({**base, 'choices': [piece]})}\n\n" for piece in pieces]
        self._send("".join([*lines, "data: [DONE]\n\n"]), "text/event-stream")

    def _send(self, text: str, kind: str = "application/json") -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _answer(body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    messages = body["messages"]
    asking = [n for n, each in enumerate(messages) if each["role"] == "user" and "CALL" in json.dumps(each["content"])]
    last = asking[-1] if asking else -1
    content = messages[last]["content"] if asking else ""
    text = content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)
    calls = re.findall(r"CALL (\w+) (\{.*\})", text)
    told = ""
    for number, each in enumerate(messages):
        for opening, (steps, end) in STORIES.items():
            if each["role"] == "user" and opening in json.dumps(each["content"]):
                last, told, calls = number, end, [(name, json.dumps(given)) for name, given in steps]
    done = sum(len(each.get("tool_calls") or ()) for each in messages[last + 1 :])
    if body.get("tools") and done < len(calls):
        name, arguments = calls[done]
        call = {"index": 0, "id": f"call_{last}_{done}", "type": "function"}
        call["function"] = {"name": name, "arguments": arguments}
        return {"role": "assistant", "tool_calls": [call]}, "tool_calls"
    results = [each["content"] for each in messages[last + 1 :] if each["role"] == "tool"]
    offered = ", ".join(tool["function"]["name"] for tool in body.get("tools", ()))
    said = json.dumps(results)[-1_500:] if results else f"offered: {offered}"
    return {"role": "assistant", "content": told or f"DONE {said}"}, "stop"


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Model).serve_forever()
