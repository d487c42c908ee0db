"""What the host makes of a guest's frames, arrays and pictures. Nothing is unpickled, and pictures stay bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agent_tools.guest.wire.budget import Budget, GivenUp, TooCostly


@dataclass(frozen=True)
class Attached:
    """Data whose library is not installed here. `kind` is 'frame' (an Arrow IPC stream) or 'array' (npy)."""

    kind: str
    content: bytes


def rich_value(kind: str, content: bytes, budget: Budget | None = None) -> Any:
    """A DataFrame, an array, or the bytes of a PNG, within a budget; by default that of a message of this size.

    Raises:
        ValueError: the content is not what it says, or costs more than it may.
        GivenUp: nobody waits for it any more.
    """
    if kind == "png":
        return content
    try:
        return _read(kind, content, budget or Budget(len(content)))
    except ImportError:
        return Attached(kind, content)
    except GivenUp:
        raise
    except TooCostly as exc:
        raise TooCostly(f"a {kind} that cannot be read ({exc})") from exc
    except Exception as exc:  # whatever a library makes of a guest's content
        raise ValueError(f"a {kind} that cannot be read ({str(exc)[:200]})") from exc


def _read(kind: str, content: bytes, budget: Budget) -> Any:
    if kind == "frame":
        from agent_tools.code_mode.frame import read_frame

        return read_frame(content, budget)
    from agent_tools.code_mode.array import read_array

    return read_array(content, budget)
