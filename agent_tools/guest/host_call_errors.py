"""The errors of host calls that user code catches."""

import builtins
from typing import Any


class HostCallError(Exception):
    """A host function failed; `type_name` is its exception's type there."""

    type_name = ""


class HostCallNotFound(HostCallError, NameError):
    """There is no host function of that name."""


class HostCallArgumentError(HostCallError, TypeError, ValueError):
    """The arguments do not match the host function."""


class HostCallTimeout(HostCallError, TimeoutError):
    """The host function exceeded its time limit."""


class HostCallDenied(HostCallError, PermissionError):
    """The call was not approved."""


class HostCallBudgetExceeded(HostCallError, RuntimeError):
    """The run has used up its calls."""


class HostCallTooLarge(HostCallError, ValueError):
    """A value is over the size limit."""


class HostGone(HostCallError, ConnectionError):
    """The host does not answer."""


KINDS = {cls.__name__: cls for cls in HostCallError.__subclasses__()}


def error_of(head: dict[str, Any]) -> BaseException:
    """Return the host's error as a class of this module, a builtin of the same name, or HostCallError."""
    kind, name, message = str(head.get("kind")), str(head.get("type") or ""), str(head.get("message") or "")
    builtin = getattr(builtins, name, None)
    is_safe = isinstance(builtin, type) and issubclass(builtin, Exception) and builtin not in _NOT_FROM_TEXT
    if kind not in KINDS and is_safe:
        return builtin(message)  # type: ignore[no-any-return,misc]
    error = KINDS.get(kind, HostCallError)(message if kind in KINDS or not name else f"{name}: {message}")
    error.type_name = name
    return error


# These have a meaning for event loops or iteration, or cannot be made from a message alone.
_NOT_FROM_TEXT = (
    *(StopIteration, StopAsyncIteration, ExceptionGroup),
    *(UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError),
)
