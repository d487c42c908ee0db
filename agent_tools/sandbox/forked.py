"""The opening of a fork: its session is there from the beginning, and once."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from agent_tools.runtime.files.workspace import Workspace
from agent_tools.runtime.session.branch_session import fork
from agent_tools.runtime.session.local import local
from agent_tools.sandbox.opening import Opening

if TYPE_CHECKING:
    from agent_tools.runtime.session.session import Session


class ForkedOpening(Opening):
    """Keeps what it was forked from open: that is closed with it if nobody else holds it, and not before."""

    def __init__(self, parent: Opening) -> None:
        runtime = parent._open_runtime()
        super().__init__(parent.options, runtime, takes_functions=parent._takes_functions)
        self._parent = parent
        self._session: Session = fork(local(parent.session(), "A fork"))
        self._end = weakref.finalize(self, self._session.close)

    def session(self) -> Session:
        """Return the session; once it is closed, its methods say so."""
        return self._session

    def find(self) -> Session | None:
        """Return the session if it is open."""
        return None if self._session.is_closed else self._session

    @property
    def workspace(self) -> Workspace:
        """The work_dir of the sandbox as the host sees it."""
        return self._parent.workspace

    def close(self) -> None:
        """End the fork."""
        self._end()
