"""A further application on the containers of a server, at a path of its own: MCP, or another product's protocol."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from agent_tools.containers.containers import Containers
from agent_tools.containers.records import Rows


@dataclass(frozen=True)
class Mount:
    """An application and its path.

    Each request's scope has its `owner`, '' for one of a public path without a key, and `for_users`: the key's holder
    may name users. A WebSocket's scope has `let_in` instead, a function that takes the client's key, sets both, and
    returns False if the client is refused. An application may set `logged_path`, for a path that names files.

    Attributes:
        open: opens the application, as ASGI has it, for as long as the server runs.
        has_tree: all paths below are the application's, with any method, and WebSockets.
        public: paths below that are answered without a key, if the request brings none.
        wants_users: it is of little use without a key made `--for-users`.
    """

    path: str
    open: Callable[[Containers[Any], Rows], AbstractAsyncContextManager[Any]]
    has_tree: bool = False
    public: tuple[str, ...] = ()
    wants_users: bool = False
