"""The protocols of sessions and their owners, and whatever claims to be one: by signatures, beside the type checker."""

from __future__ import annotations

import inspect
import typing

import pytest

from agent_tools.engines.engine import Engine
from agent_tools.fleet.fleet import Fleet
from agent_tools.fleet.leased_session import CallRelay
from agent_tools.fleet.remote_session import RemoteCommands, RemoteFiles, RemoteSession, RemoteVariables
from agent_tools.runtime.commands.commands import Commands
from agent_tools.runtime.files.guest_files import GuestFiles
from agent_tools.runtime.host_calls.host_calls import HostCalls
from agent_tools.runtime.host_calls.wire import ServesCalls
from agent_tools.runtime.runtime import Runtime
from agent_tools.runtime.session.session import BranchSession, Session, SessionVariables
from agent_tools.runtime.sessions import CommandsLike, FilesLike, RuntimeLike, SessionLike, VariablesLike
from tests.doubles import ProcessEngine

CLAIMS = [
    (RuntimeLike, Runtime),
    (RuntimeLike, Fleet),
    (SessionLike, Session),
    (SessionLike, BranchSession),
    (SessionLike, RemoteSession),
    (FilesLike, GuestFiles),
    (FilesLike, RemoteFiles),
    (CommandsLike, Commands),
    (CommandsLike, RemoteCommands),
    (VariablesLike, SessionVariables),
    (VariablesLike, RemoteVariables),
    (ServesCalls, HostCalls),
    (ServesCalls, CallRelay),
    (Engine, ProcessEngine),
]
OF_THE_INSTANCE = {"ensure_image", "limits", "variables"}
"""What a class may set when it is made."""


def members(protocol: type) -> dict[str, object]:
    """Return what a protocol asks for, of those that it extends, too."""
    classes = [each for each in protocol.__mro__ if typing.Protocol in each.__mro__ and each is not typing.Protocol]
    return {name: value for each in classes for name, value in vars(each).items() if not name.startswith("_")}


@pytest.mark.parametrize(("protocol", "claimed"), CLAIMS, ids=[claimed.__name__ for _, claimed in CLAIMS])
def test_it_has_all_that_is_asked_for_with_the_same_parameters(protocol: type, claimed: type) -> None:
    asked = members(protocol)
    assert len(asked) > 1
    for name, member in asked.items():
        has = inspect.getattr_static(claimed, name, None)
        assert has is not None or name in OF_THE_INSTANCE, f"{claimed.__name__} has no {name}"
        if inspect.isfunction(member) and inspect.isfunction(has):
            wanted, found = inspect.signature(member).parameters, inspect.signature(has).parameters
            shapes = [(each.name, each.kind) for each in wanted.values()]
            assert [(each.name, each.kind) for each in found.values()][: len(shapes)] == shapes, name
            assert all(each.default is not inspect.Parameter.empty for each in list(found.values())[len(shapes) :])
