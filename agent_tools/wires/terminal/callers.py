"""The caller of a request: whose container it means, and paths as callers write them."""

from __future__ import annotations

import hashlib
import json
import posixpath
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

HOME = "/workspace"
_ALIASES = ("/home/user", "/mnt/data", "~")  # what models write for HOME
_NO_USERS = ("", "system")  # who is named where Open WebUI asks for itself


@dataclass(frozen=True)
class Caller:
    """A user, or the one holder of a key that names no users.

    Attributes:
        owner: the owner of the containers, by the key.
        room: the name of the caller's container: a digest of policy, user and context.
        origin: the origin of the user's containers: a digest of the user.
        session: the chat, '' for none. It names working directories, commands and shells within the container.
        policy: the operator's policy for the container, '' for none.
        is_user: a container may be made.
    """

    owner: str
    room: str
    origin: str
    session: str
    policy: str
    is_user: bool

    @property
    def place(self) -> tuple[str, str, str]:
        """The key of what belongs to one chat."""
        return self.owner, self.room, self.session


def caller_of(connection: HTTPConnection) -> Caller:
    """Return the caller. Headers that name users and chats count only with a key that is for users.

    Raises:
        HTTPException: 401, no key was sent.
    """
    scope, headers = connection.scope, connection.headers
    if not scope["owner"]:
        raise HTTPException(401, "Send a key: 'Authorization: Bearer KEY'.")
    user = policy = context = ""
    if scope["for_users"]:
        user, context = headers.get("x-user-id", ""), headers.get("x-terminal-context-id", "")
        policy = connection.path_params.get("policy", "")
    return Caller(
        scope["owner"],
        digest(policy, user, context)[:40],
        f"t-{digest(user)[:14]}",
        headers.get("x-session-id", "")[:128],
        policy,
        is_user=not scope["for_users"] or user not in _NO_USERS,
    )


def digest(*parts: str) -> str:
    """Return a digest of texts, in hex; no two lists of texts have the same."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def resolved(path: str, cwd: str = HOME) -> str:
    """Return a path as an absolute one in normal form.

    Raises:
        HTTPException: 400, it holds a NUL.
    """
    for known in _ALIASES:
        if path == known or path.startswith(f"{known}/"):
            path = HOME + path[len(known) :]
    if "\0" in path:
        raise HTTPException(400, "A path has no NUL.")
    return "/" + posixpath.normpath(posixpath.join(cwd, path)).lstrip("/")


def inside(path: str) -> str | None:
    """Return an absolute path relative to HOME, '' for HOME itself; None if it lies elsewhere."""
    if path == HOME:
        return ""
    return path[len(HOME) + 1 :] if path.startswith(f"{HOME}/") else None


def in_sandbox(path: str) -> str:
    """Return an absolute path as a sandbox takes it, whose paths count from HOME."""
    relative = inside(path)
    return path if relative is None else relative or "."
