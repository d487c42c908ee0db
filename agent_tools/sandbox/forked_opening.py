"""The opening of a further kernel: its session is open from the beginning and cannot be opened again."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from agent_tools.machine import event_loop
from agent_tools.runtime.files.workspace import Workspace
from agent_tools.runtime.session.session import Session
from agent_tools.sandbox.opening import Opening


class ForkedOpening(Opening):
    """Holds a reference to the sandbox that it was made of, which stays open at least as long.

    `begin` makes its session of that one's.
    """

    def __init__(self, parent: Opening, begin: Callable[[Session], Session]) -> None:
        runtime = parent._open_runtime()
        super().__init__(parent.options, runtime, takes_functions=parent._takes_functions)
        self._parent = parent
        self._session = begin(parent.session())
        self._end = weakref.finalize(self, _close, self._session)

    def session(self) -> Session:
        """Return the session; once it is closed, its methods raise `SessionClosed`."""
        return self._session

    def find(self) -> Session | None:
        """Return the session if it is open, else None."""
        return None if self._session.is_closed else self._session

    @property
    def workspace(self) -> Workspace:
        """The sandbox's work_dir on the host."""
        return self._parent.workspace

    def close(self) -> None:
        """Close the fork."""
        self._end()


def _close(session: Session) -> None:
    if event_loop.is_here():  # as for an `Opening`
        session.behind(session.close)
    else:
        session.close()
