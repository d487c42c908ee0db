"""A client of Codex's exec-server protocol for tests, over any way to send and receive messages."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


class ExecClient:
    """Calls methods and keeps the notifications that come meanwhile."""

    def __init__(self, send: Callable[[str], object], receive: Callable[[], str | bytes]) -> None:
        self._send = send
        self._receive = receive
        self._answers: dict[int, Any] = {}
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def begin(self, name: str, /, **params: Any) -> int:
        self._number += 1
        self._send(json.dumps({"id": self._number, "method": name, "params": params}))
        return self._number

    def answer(self, number: int) -> Any:
        while number not in self._answers:
            self._read()
        return self._answers.pop(number)

    def call(self, name: str, /, **params: Any) -> Any:
        """Return the result, or for a failure the pair of code and message."""
        answer = self.answer(self.begin(name, **params))
        error = answer.get("error")
        return (error["code"], error["message"]) if error else answer["result"]

    def initialize(self, resumed: str | None = None) -> Any:
        result = self.call("initialize", clientName="test", resumeSessionId=resumed)
        self._send('{"method":"initialized"}')
        return result

    def start(self, id_: str, *argv: str, cwd: str = "/workspace", **more: Any) -> Any:
        given = {"env": {}, "tty": False, "arg0": None, **more}
        return self.call("process/start", processId=id_, argv=list(argv), cwd=f"file://{cwd}", **given)

    def output(self, id_: str) -> tuple[bytes, int]:
        """Wait for the end of a process; return what it printed and its exit code."""
        while not any(each["method"] == "process/closed" for each in self.of(id_)):
            self._read()
        events = self.of(id_)
        assert [each["params"]["seq"] for each in events] == list(range(1, len(events) + 1))
        printed = b"".join(base64.b64decode(each["params"].get("chunk", "")) for each in events)
        (exited,) = (each for each in events if each["method"] == "process/exited")
        return printed, exited["params"]["exitCode"]

    def of(self, id_: str) -> list[dict[str, Any]]:
        return [each for each in self.events if each["params"].get("processId") == id_]

    def ran(self, id_: str, *argv: str, **more: Any) -> tuple[bytes, int]:
        assert self.start(id_, *argv, **more) == {"processId": id_, "sandboxType": "none"}
        return self.output(id_)

    def _read(self) -> None:
        message = json.loads(self._receive())
        if "id" in message:
            self._answers[message["id"]] = message
        else:
            self.events.append(message)
