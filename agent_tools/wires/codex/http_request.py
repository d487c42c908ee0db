"""`http/request`: a request that a program in the sandbox sends, so that its egress allowlist decides."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from agent_tools.bodies.json_body import BodyRefused, at_most, parsed
from agent_tools.sandbox.sandbox import Sandbox
from agent_tools.wires.codex.files import MAX_FILE
from agent_tools.wires.codex.messages import FAILED, Number, RpcError

SECONDS = 60.0  # unless the client gives fewer
_PROGRAM = """
import base64, http.client, json, sys, urllib.error, urllib.request
method, url, headers, body, follows, most = json.load(sys.stdin)
class Stop(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None
request = urllib.request.Request(url, None if body is None else base64.b64decode(body), headers, method=method)
try:
    answer = urllib.request.build_opener(*([] if follows else [Stop])).open(request)
except urllib.error.HTTPError as exc:
    answer = exc
except (OSError, ValueError, http.client.HTTPException) as exc:
    sys.exit(f"http/request failed: {exc}")
data = answer.read(most + 1)
if len(data) > most:
    sys.exit(f"http/request failed: the body has more than {most:,} bytes")
data = base64.b64encode(data).decode()
headers = [{"name": name, "value": value} for name, value in answer.headers.items()]
print(json.dumps({"status": answer.status, "headers": headers, "bodyBase64": data}))
"""
Text = Annotated[str, Field(max_length=32_768)]


class Header(BaseModel):
    """A header field."""

    name: Text
    value: Text


def fetch(
    sandbox: Sandbox,
    method: Text,
    url: Text,
    request_id: Text,
    headers: Annotated[list[Header], at_most(1_000)] = [],  # noqa: B006
    body_base64: str | None = None,
    timeout_ms: Number | None = None,
    redirect_policy: Literal["follow", "stop"] = "follow",
    stream_response: bool = False,
) -> list[dict[str, Any]]:
    """Return the answer to a request; if its body is streamed, with the notification that has the whole body.

    Raises:
        RpcError: the sandbox has no allowlist, the request failed, or the body has more than `MAX_FILE` bytes.
    """
    if sandbox.options.isolation.policy is None:
        message = f"http/request of {url:.200} is refused: this sandbox has no network (`--allow HOST` gives one)"
        raise RpcError(message)
    if not url.lower().startswith(("http://", "https://")):
        raise RpcError("http/request only supports http and https URLs")
    fields = dict[str, str]()
    for each in headers:  # fields of one name are a list: https://www.rfc-editor.org/rfc/rfc9110#section-5.3
        name, between = each.name.lower(), "; " if each.name.lower() == "cookie" else ", "
        fields[name] = f"{fields[name]}{between}{each.value}" if name in fields else each.value
    arguments = json.dumps([method, url, fields, body_base64, redirect_policy == "follow", MAX_FILE]).encode()
    seconds = min(SECONDS, max(1, timeout_ms or SECONDS * 1000) / 1000)
    command = ["python3", "-I", "-c", _PROGRAM]
    ran = sandbox.run_command(command, stdin=arguments, timeout=seconds, max_output=2 * MAX_FILE)
    try:
        answer: dict[str, Any] = parsed(ran.stdout)
        if ran.ok and isinstance(body := answer["bodyBase64"], str):
            delta = {"requestId": request_id, "seq": 1, "deltaBase64": body, "done": True}
            event = {"method": "http/request/bodyDelta", "params": delta}
            return [{**answer, "bodyBase64": ""}, event] if stream_response else [answer]
    except (BodyRefused, TypeError, KeyError):
        pass
    raise RpcError(ran.reason or ran.stderr.decode("utf-8", "replace").strip()[-500:] or "no answer", FAILED)
