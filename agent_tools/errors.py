"""The exceptions of this package, for its own failures. A failure of user code is a value (execution.py) instead.

AgentToolsError
├── ToolServiceError        the only exception that a tool's caller sees
│   └── InvalidParams
│       └── UnclearCode
├── EngineError
│   ├── EngineUnavailable
│   ├── ImageBuildError
│   ├── SandboxStartError
│   └── HostFull
├── KernelError
│   ├── KernelDied
│   ├── CheckpointMissing
│   └── ProtocolViolation
├── CodeModeError           what run("main") raises
│   ├── GuestError
│   ├── GuestTimeout
│   └── GuestDied
├── PreludeError
├── SessionClosed
├── SessionBusy
├── SandboxGone
├── FileRejected
└── ModelError

Exceptions used in one folder only are defined there and derive from AgentToolsError too. Two kinds do not: an error
answer of the gateway (ApiError), which no caller of the package sees, and exceptions of the guest, which cannot import
these classes.
"""

from __future__ import annotations

from typing import Any


class AgentToolsError(Exception):
    """Base of every exception that the package raises to its callers.

    Attributes:
        has_begun: code or a command had begun, and was ended.
    """

    has_begun = False


class ToolServiceError(AgentToolsError):
    """A tool failed for a reason other than user code.

    Attributes:
        exception: the exception that caused it, or None.
        code: a short stable name of the failure, for programs.
        message: what happened and what to do next, for people and models; never empty.
        extra: further facts, or None.
    """

    def __init__(
        self,
        exception: Exception | None = None,
        code: str | None = None,
        message: str | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        if exception is not None:
            super().__init__(exception)
        else:
            super().__init__(f"\nError code: {code}. Error message: {message}")
        self.exception = exception
        self.code = code
        self.message = message or str(self).strip() or repr(exception)
        self.extra = extra


class InvalidParams(ToolServiceError):
    """The caller's arguments or configuration cannot be used; nothing was run."""

    def __init__(self, message: str, extra: dict[str, Any] | None = None) -> None:
        super().__init__(code="InvalidParams", message=message, extra=extra)

    def __str__(self) -> str:
        return self.message


class UnclearCode(InvalidParams):
    """The code can be read in several ways, or there is none in the text; nothing was run."""


class EngineError(AgentToolsError):
    """The container engine failed, or rejected a request."""


class EngineUnavailable(EngineError):
    """No container engine answers."""


class ImageBuildError(EngineError):
    """The image could not be built or found. `log` holds the end of the build's output."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class SandboxStartError(EngineError):
    """A sandbox did not start. `log` holds the end of its output."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class HostFull(EngineError):
    """No machine has room for another sandbox now; close some, or wait."""


class KernelError(AgentToolsError):
    """The kernel failed outside an execution, or broke the protocol."""


class KernelDied(KernelError):
    """The kernel ended, or did not become ready. `reason` is a sentence."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CheckpointMissing(KernelError):
    """There is no checkpoint to go back to, or a checkpoint cannot be taken now. The variables are unchanged."""


class PreludeError(AgentToolsError):
    """The code that runs first in every fresh kernel failed; the message holds its traceback."""


class ProtocolViolation(KernelError):
    """The kernel sent something that is not the Jupyter messaging protocol."""


class CodeModeError(AgentToolsError):
    """A function of a script did not return. `execution` holds everything that its code produced."""

    def __init__(self, message: str, execution: Any = None) -> None:
        super().__init__(message)
        self.execution = execution


class GuestError(CodeModeError):
    """The script raised. `name` is the type of its exception, `value` the text, `traceback` the frames as text."""

    def __init__(self, name: str, value: str, traceback: str, execution: Any = None) -> None:
        super().__init__(f"{name}: {value}" if value else name, execution)
        self.name = name
        self.value = value
        self.traceback = traceback


class GuestTimeout(CodeModeError):
    """The script exceeded its time limit; the message says whether its state is kept."""


class GuestDied(CodeModeError):
    """The kernel ended while the script ran; its state is lost."""


class SessionClosed(AgentToolsError):
    """The session was closed; open a new one."""


class SessionBusy(AgentToolsError):
    """The session already runs code for the same caller."""


class SandboxGone(AgentToolsError):
    """The sandbox ended during an operation; everything in it except work_dir is lost."""


class FileRejected(AgentToolsError):
    """A file could not be copied into or out of work_dir."""


class ModelError(AgentToolsError):
    """The language model could not be reached, or broke off its answer.

    The message never holds the request, the key, or the server's own text, which may repeat both.

    Attributes:
        status: the HTTP status of the answer, or None if there was none.
        code: the server's short name of the failure, or None.
        is_retryable: the same request may succeed later.
        detail: the server's own text, only for readers who may see the conversation; '' by default.
        retry_after: the value of HTTP's Retry-After, seconds or a date; '' if the server sent none.
    """

    def __init__(
        self,
        message: str,
        status: int | None = None,
        code: str | None = None,
        is_retryable: bool = False,
        detail: str = "",
        retry_after: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.is_retryable = is_retryable
        self.detail = detail
        self.retry_after = retry_after
