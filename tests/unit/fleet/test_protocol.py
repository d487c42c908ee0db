"""What crosses between callers and hosts: values of ours, as bytes and back."""

from __future__ import annotations

import dataclasses
import inspect
import io
import pickle
from pathlib import Path
from typing import Any

import pytest

from agent_tools import errors
from agent_tools.engines.engine import Isolation, Recipe
from agent_tools.engines.network import NetworkPolicy
from agent_tools.errors import AgentToolsError, InvalidParams
from agent_tools.fleet import protocol
from agent_tools.fleet.protocol import (
    CallMessage,
    HostFacts,
    HostUnreachable,
    Load,
    RemoteSpec,
    RunEnded,
    SessionUnknown,
    image_word,
    remote_spec,
)
from agent_tools.guest.wire.commands import CommandPrinted
from agent_tools.limits import CallLimits, Limits
from agent_tools.results.execution import CommandResult, Display, Error, Stream
from agent_tools.runtime.sandbox.kernels import SessionSpec
from agent_tools.sandbox.options import Options

VALUES = [
    RemoteSpec(Isolation(network=NetworkPolicy.read({"allow": ["pypi"]})), Limits(), call_limits=CallLimits()),
    Load(1, 2, 1),
    HostFacts("node", 7, "0.1.0"),
    [Stream("stdout", "x"), Display({"image/png": b"\x89PNG"}), Error("E", "v", "t")],
    CallMessage({"op": "call", "id": 1, "name": "f", "args": [1, None], "kwargs": {"a": "b"}}, [b"raw"], 70),
    RunEnded(files={"a": b"1", "b": None}, larger={"c": (1, 2, 3)}, missing="d"),
    CommandPrinted("stderr", b"x"),
    CommandResult(0, b"out"),
]


class Watching(pickle.Unpickler):
    """Keeps the modules whose names it was asked for."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.modules: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.modules.add(module)
        return super().find_class(module, name)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_what_crosses_is_made_of_our_values_and_plain_data(value: Any) -> None:
    reading = Watching(pickle.dumps(value))
    assert reading.load() == value
    others = {name for name in reading.modules if not name.startswith("agent_tools")}
    assert others <= {"builtins", "ipaddress", "pathlib", "copyreg", "dataclasses"}, others


@pytest.mark.parametrize("name", [name for name, each in vars(protocol).items() if dataclasses.is_dataclass(each)])
def test_every_value_that_crosses_is_frozen(name: str) -> None:
    assert getattr(protocol, name).__dataclass_params__.frozen


RAISED = [each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, AgentToolsError)]


@pytest.mark.parametrize("kind", [*RAISED, SessionUnknown], ids=lambda kind: kind.__name__)
def test_an_exception_crosses_with_all_that_it_says(kind: type[AgentToolsError]) -> None:
    arguments = ("what happened", "value", "traceback") if kind is errors.GuestError else ("what happened",)
    raised = kind(None, "code", "what happened") if kind is errors.ToolServiceError else kind(*arguments)  # type: ignore[call-arg]
    crossed = pickle.loads(pickle.dumps(raised)) if kind is not errors.GuestError else raised
    assert type(crossed) is kind
    assert str(crossed) == str(raised)
    assert vars(crossed) == vars(raised)


def test_a_host_that_is_gone_crosses_with_its_finality() -> None:
    gone = pickle.loads(pickle.dumps(HostUnreachable("it has ended", is_final=True)))
    assert (str(gone), gone.is_final) == ("it has ended", True)


def spec(cfg: dict[str, Any]) -> SessionSpec:
    options = Options.read(cfg)
    return options.session_spec(options.image or image_word(options.recipe), Path("/work"))


def test_a_recipe_crosses_in_the_place_of_a_tag() -> None:
    found = remote_spec(spec({"packages": ["polars==1.35.0"], "flavour": "full"}))
    assert (found.image, found.recipe) == ("", Recipe(("polars==1.35.0",), flavour="full"))
    assert remote_spec(spec({"image": "mine:1"})).image == "mine:1"


def test_nothing_of_the_callers_machine_crosses() -> None:
    assert "/work" not in repr(remote_spec(spec({"memory": 2**30})))
    with pytest.raises(InvalidParams, match="packages_cache is a folder of this machine"):
        remote_spec(spec({"network": {"allow": ["pypi"], "packages_cache": "/cache"}}))


def test_what_differs_only_in_functions_and_prelude_is_one_kind() -> None:
    usual = remote_spec(spec({}))
    with_calls = dataclasses.replace(usual, prelude="x = 1", call_limits=CallLimits())
    assert usual.kind == with_calls.kind
    assert dataclasses.replace(usual, call_limits=CallLimits(max_calls=1)).kind != usual.kind
    assert remote_spec(spec({"memory": 2**30})).kind != usual.kind
