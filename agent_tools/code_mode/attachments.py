"""The values of a guest's frames, arrays and pictures on the host. Nothing is unpickled, and pictures stay bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agent_tools.guest.wire.budget import Budget, GivenUp, TooCostly


@dataclass(frozen=True)
class Attachment:
    """Data whose library is not installed here: an Arrow IPC stream ('frame') or an npy file ('array')."""

    kind: str
    content: bytes


def rich_value(kind: str, content: bytes, budget: Budget | None = None) -> Any:
    """Make a DataFrame, an array, or the bytes of a PNG, within a budget; by default that of a message of this size.

    Raises:
        ValueError: the content is malformed, or costs more than the budget.
        GivenUp: the call that waited for it is over.
    """
    if kind == "png":
        return content
    try:
        return _read(kind, content, budget or Budget(len(content)))
    except ImportError:
        return Attachment(kind, content)
    except GivenUp:
        raise
    except TooCostly as exc:
        raise TooCostly(f"a {kind} that cannot be read ({exc})") from exc
    except Exception as exc:  # a library may raise anything at a guest's content
        raise ValueError(f"a {kind} that cannot be read ({str(exc)[:200]})") from exc


def _read(kind: str, content: bytes, budget: Budget) -> Any:
    if kind == "frame":
        from agent_tools.code_mode.frame import read_frame  # loads pandas and pyarrow, which need not be installed

        return read_frame(content, budget)
    from agent_tools.code_mode.array import read_array  # loads numpy, which need not be installed

    return read_array(content, budget)
