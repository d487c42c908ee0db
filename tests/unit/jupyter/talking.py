"""A client of Jupyter's for the tests: the stock one, with its answers as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient

PATIENCE = 30.0  # seconds for an answer


@dataclass
class Ran:
    """One execution: its reply, and what was published."""

    reply: Mapping[str, Any]
    published: list[dict[str, Any]] = field(default_factory=list)

    @property
    def status(self) -> str:
        return str(self.reply["content"]["status"])

    @property
    def text(self) -> str:
        """What it printed, and the text of what it returned."""
        contents = [message["content"] for message in self.published]
        return "".join(str(each.get("text", each.get("data", {}).get("text/plain", ""))) for each in contents)

    @property
    def kinds(self) -> list[str]:
        return [message["msg_type"] for message in self.published]


class Talk:
    """A connected client."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self.client = client

    def run(self, code: str, answer: str | None = None, **options: Any) -> Ran:
        """Execute code; a request for input is answered with `answer`."""
        published: list[dict[str, Any]] = []
        if answer is not None:
            options.update(allow_stdin=True, stdin_hook=lambda _: self.client.input(answer))
        else:
            options.setdefault("allow_stdin", False)
        reply = self.client.execute_interactive(code, output_hook=published.append, timeout=PATIENCE, **options)
        return Ran(reply, published)

    def ask(self, kind: str, content: Mapping[str, Any], channel: str = "shell") -> dict[str, Any]:
        """Send a request; return the content of its reply."""
        message = self.client.session.msg(kind, dict(content))
        chosen = getattr(self.client, f"{channel}_channel")
        chosen.send(message)
        return self.reply_to(message["header"]["msg_id"], channel)

    def reply_to(self, message_id: str, channel: str = "shell") -> dict[str, Any]:
        """Return the content of the reply to a request."""
        while True:
            reply = getattr(self.client, f"get_{channel}_msg")(timeout=PATIENCE)
            if reply["parent_header"].get("msg_id") == message_id:
                return dict(reply["content"])


@contextmanager
def talking(told: Mapping[str, Any]) -> Iterator[Talk]:
    """A client of the kernel at this connection, once it answers."""
    client = BlockingKernelClient()
    client.load_connection_info({**told, "key": told["key"].decode()})
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE)
        yield Talk(client)
    finally:
        client.stop_channels()
        client.context.destroy(linger=0)
