"""An additional ASGI application on a server's containers, at its own path: MCP, or another product's protocol."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from agent_tools.containers.containers import Containers
from agent_tools.containers.rows import Rows


@dataclass(frozen=True)
class Mount:
    """An application and its path.

    Each request's scope has `owner`, '' for a request to a public path without a key, and `for_users`, True if the key
    allows to name users. The scope of a WebSocket without a key in its head has `authenticate` instead: a coroutine
    function that takes the client's key, sets both, and returns False if the client is rejected; then `refusal` may be
    an exception with a `message`, which the application may raise before it accepts the connection. An application may
    set `logged_path` if its path names files.

    Attributes:
        open: opens the application, as ASGI has it, for as long as the server runs.
        has_tree: the application serves all paths below, with any method, and WebSockets.
        public: paths below that are answered without a key.
        wants_users: the application needs a key made with `--for-users` for most of its functions.
        has_secret_path: paths below may hold a key, so that logs have the mount's own path.
    """

    path: str
    open: Callable[[Containers[Any], Rows], AbstractAsyncContextManager[Any]]
    has_tree: bool = False
    public: tuple[str, ...] = ()
    wants_users: bool = False
    has_secret_path: bool = False
