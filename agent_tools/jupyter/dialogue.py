"""Passes messages between one kernel and all its clients: requests in turn, each between `busy` and `idle`.

Theory of operation
    Requests on the shell channel wait in a queue, and the kernel has one of them at a time. A request ends when the
    kernel reports that it is idle again. Requests on the control channel are answered here, whatever the kernel does:
    PID 1 sends the interrupt, and only the host may end a kernel.

    The kernel's messages name the request they belong to by its id. Clients get the header of that request as its
    client wrote it, if it is a recent one, else no parent header.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any

from agent_tools.errors import FileRejected
from agent_tools.guest.wire.messages import IOPUB, SHELL, STDIN
from agent_tools.jupyter.answers import ClientMessage, note, read_answer
from agent_tools.jupyter.plain import plainly
from agent_tools.jupyter.sockets import KernelSockets
from agent_tools.jupyter.wire import ClientRequest, SignedFrames
from agent_tools.results.execution import Died, Error
from agent_tools.runtime.kernel.channel import Arrived
from agent_tools.runtime.kernel.protocol import VERSION
from agent_tools.runtime.session.raw_kernel import RawKernel
from agent_tools.sandbox.audit import AuditLog, AuditUnavailable

MAX_WAITING = 1_000  # requests in the queue; further ones wait at their clients
MAX_WAITING_BYTES = 64 * 1024 * 1024  # of them
MAX_HEADERS = 1_000  # of requests that messages may still belong to
RUNS_CODE = frozenset(("execute_request", "comm_open", "comm_msg", "comm_close"))
UNREAD = "[left out: clients do not read]"


class Dialogue:
    """Takes messages of clients and of the kernel, and passes them to the other side."""

    def __init__(
        self,
        wire: SignedFrames,
        sockets: KernelSockets,
        kernel: RawKernel,
        audit: AuditLog,
        *,
        is_plain: bool = False,
    ) -> None:
        self._is_plain = is_plain  # HTML, scripts and widgets are left out
        self._audit = audit
        self._audited = AuditLog().run("")  # the run of the current request
        self._wire = wire
        self._sockets = sockets
        self._kernel = kernel
        self._queue: deque[ClientRequest] = deque()
        self._current: ClientRequest | None = None
        self._asked = False
        """True while the code waits for a line from its client."""
        self._headers: OrderedDict[str, bytes] = OrderedDict()
        self._kernel_info: Mapping[str, Any] = {}
        self.is_over = False
        """True once a client has asked for the kernel's end."""
        self._publish("status", b"", {"execution_state": "starting"})
        self._queue.append(_own_request("kernel_info_request"))
        self._go_on()

    @property
    def takes_requests(self) -> bool:
        """True while there is room in the queue."""
        waiting = sum(request.size for request in self._queue)
        return len(self._queue) < MAX_WAITING and waiting < MAX_WAITING_BYTES

    def close(self) -> None:
        """Note that the current request ends with the kernel."""
        self._audited.end("cancelled")

    # -- messages of clients ------------------------------------------------------------------------------------------

    def handle(self, request: ClientRequest) -> None:
        """Take in a message of a client."""
        if request.refusal:
            self._refuse(request, _error("ValueError", request.refusal))
        elif request.channel == "stdin":
            self._answer_code(request)
        elif request.kind == "shutdown_request":
            self._shut_down(request)
        elif request.channel == "control":
            self._control(request)
        else:
            self._queue.append(request)
            self._go_on()

    def welcome(self, topic: bytes) -> None:
        """Tell a client that it receives published messages from now on."""
        self._publish("iopub_welcome", b"", {"subscription": topic.decode("utf-8", "replace")}, topic)

    def _answer_code(self, answer: ClientRequest) -> None:
        """Pass on the line of input, if it comes from the client that ran the code."""
        if self._current and self._asked and answer.identities == self._current.identities:
            self._asked = False
            self._kernel.send(STDIN, answer.parts)

    def _control(self, request: ClientRequest) -> None:
        self._publish("status", request.header, {"execution_state": "busy"})
        if request.kind == "interrupt_request":
            self._kernel.interrupt()
            self._reply(request, {"status": "ok"})
        elif request.kind == "kernel_info_request":
            self._reply(request, self._kernel_info or _KERNEL_INFO)
        elif request.reply_kind:
            self._reply(request, _error("NotImplementedError", f"This kernel does not know {request.kind:.80}."))
        self._publish("status", request.header, {"execution_state": "idle"})

    def _shut_down(self, request: ClientRequest) -> None:
        content = {"status": "ok", "restart": request.content.get("restart") is True}
        self._reply(request, content)
        self._publish("shutdown_reply", request.header, content)
        self.is_over = True

    # -- the queue ----------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Send the next request to the kernel, if the kernel is idle."""
        while self._queue and not self._current:
            request = self._queue.popleft()
            self._headers[request.id] = request.header
            if len(self._headers) > MAX_HEADERS:
                self._headers.popitem(last=False)
            try:
                self._begin(request)
            except (AuditUnavailable, FileRejected, ValueError) as exc:
                self._refuse(request, _error(type(exc).__name__, str(exc)))

    def _begin(self, request: ClientRequest) -> None:
        if request.size > self._kernel.max_message_bytes:
            raise ValueError(f"The request has {request.size:,} bytes, more than {self._kernel.max_message_bytes:,}.")
        is_run = request.kind == "execute_request"
        self._audited = (self._audit if is_run else AuditLog()).run(str(request.content.get("code", "")))
        with contextlib.ExitStack() as undo:
            undo.callback(self._audited.end, "refused")
            run = self._kernel.begin(is_code=request.kind in RUNS_CODE)
            undo.callback(self._kernel.end)
            header, parent, metadata, *rest = request.parts
            metadata = _with_run(metadata, run if is_run else 0)
            self._kernel.send(SHELL, [header, parent, metadata, *rest])
            undo.pop_all()
        self._current = request

    def _end(self) -> None:
        """Note that the current request is over."""
        if notes := self._kernel.end():
            self._print(notes)
        self._current, self._asked = None, False
        self._audited.end("ok")

    def _refuse(self, request: ClientRequest, content: Mapping[str, Any]) -> None:
        """Answer a request without the kernel."""
        self._publish("status", request.header, {"execution_state": "busy"})
        if request.kind == "execute_request" and content["status"] == "error":
            error = {name: content[name] for name in ("ename", "evalue", "traceback")}
            self._publish("error", request.header, error)
        self._reply(request, content)
        self._publish("status", request.header, {"execution_state": "idle"})

    def _abort(self) -> None:
        """Answer waiting requests behind failed code as aborted: they depend on its results."""
        waiting, self._queue = self._queue, deque()
        for request in waiting:
            if request.kind == "execute_request":
                self._refuse(request, {"status": "aborted"})
            else:
                self._queue.append(request)

    # -- what the kernel says -----------------------------------------------------------------------------------------

    def hear(self, arrived: Arrived) -> None:
        """Take in a message of the kernel."""
        answer = read_answer(arrived.message, arrived.parts)
        answer = plainly(answer) if answer and self._is_plain else answer
        current = self._current
        is_current = current is not None and arrived.message.parent_id == current.id
        if answer is None:
            return
        if arrived.message.channel == IOPUB:
            is_over = is_current and answer.values.get("execution_state") == "idle"
            if is_over:
                self._end()  # files are where they belong before the client hears that it is over
            if not (current and is_current and not current.channel):
                self._pass_on(answer, arrived.message.parent_id)
            if is_over:
                self._go_on()
        elif current and is_current and arrived.message.channel == SHELL and answer.kind == current.reply_kind:
            self._pass_reply(answer, current)
        elif current and is_current and arrived.message.channel == STDIN:
            self._asked = True
            self._send("stdin", current, answer)

    def _pass_on(self, answer: ClientMessage, parent_id: str) -> None:
        frames = self._frames(answer, self._headers.get(parent_id, b""))
        if not self._sockets.publish(frames) and (left_out := note(answer.kind, UNREAD)):
            self._sockets.publish(self._frames(left_out, self._headers.get(parent_id, b"")))

    def _pass_reply(self, answer: ClientMessage, request: ClientRequest) -> None:
        if answer.kind == "kernel_info_reply":
            self._kernel_info = dict(answer.values)
        if answer.values.get("status") == "error":
            self._audited.failed(Error(str(answer.values.get("ename", "")), "", ""))
        self._send(request.channel, request, answer)
        stops = request.content.get("stop_on_error", True) and not request.content.get("silent", False)
        if request.kind == "execute_request" and answer.values.get("status") == "error" and stops:
            self._abort()

    def tell_death(self, died: Died) -> None:
        """Tell waiting clients that the kernel has ended, and whether variables were restored."""
        current, self._current, self._asked = self._current, None, False
        self._audited.failed(died)
        self._audited.end("died")
        if current and current.channel:
            name, _, text = died.text.partition(": ")
            self._refuse(current, {**_error(name, text), "execution_count": 0})
        else:
            self._print(died.text)
        if died.variables.kept:
            self._abort()
            self._go_on()

    # -- what clients are told ----------------------------------------------------------------------------------------

    def _print(self, text: str) -> None:
        header = self._current.header if self._current else b""
        self._publish("stream", header, {"name": "stderr", "text": text + "\n"})

    def _publish(self, kind: str, parent: bytes, content: Mapping[str, Any], topic: bytes = b"") -> None:
        self._sockets.publish([topic or _topic(kind), *self._wire.write(kind, parent, content)])

    def _frames(self, answer: ClientMessage, parent: bytes) -> list[bytes]:
        frames = self._wire.write(answer.kind, parent, answer.content, answer.metadata, answer.buffers)
        return [_topic(answer.kind), *frames]

    def _reply(self, request: ClientRequest, content: Mapping[str, Any]) -> None:
        if request.reply_kind:
            self._send(
                request.channel, request, ClientMessage(request.reply_kind, json.dumps(content).encode(), content)
            )

    def _send(self, channel: str, request: ClientRequest, answer: ClientMessage) -> None:
        if channel:
            frames = self._wire.write(answer.kind, request.header, answer.content, answer.metadata, answer.buffers)
            self._sockets.send(channel, [*request.identities, *frames])  # type: ignore[arg-type]


_KERNEL_INFO: Mapping[str, Any] = {
    "status": "ok",
    "protocol_version": VERSION,
    "implementation": "ipython",
    "implementation_version": "",
    "language_info": {"name": "python", "version": "3", "mimetype": "text/x-python", "file_extension": ".py"},
    "banner": "",
    "help_links": [],
}
"""Defaults for facts that the kernel has not sent yet."""


def _topic(kind: str) -> bytes:
    return f"kernel.{kind}".encode()


def _error(name: str, text: str) -> dict[str, Any]:
    return {"status": "error", "ename": name, "evalue": text, "traceback": [f"{name}: {text}"]}


def _own_request(kind: str) -> ClientRequest:
    """Return a request of our own, which no client hears of."""
    header = json.dumps({"msg_id": uuid.uuid4().hex, "msg_type": kind, "version": VERSION}).encode()
    return ClientRequest("", (), kind, json.loads(header)["msg_id"], (header, b"{}", b"{}", b"{}"))


def _with_run(metadata: bytes, run: int) -> bytes:
    """Return metadata with the number by which a checkpoint is known, and without one that a client made up."""
    found = json.loads(metadata)
    given = found if isinstance(found, dict) else {}
    kept = {name: value for name, value in given.items() if name not in ("checkpoint", "is_urgent")}
    return json.dumps({**kept, **({"checkpoint": run} if run else {})}).encode()
