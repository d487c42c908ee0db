"""What people know from other libraries is answered with the name of what stands here in its place."""

from __future__ import annotations

import pickle
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from agent_tools import AsyncSandbox, Sandbox
from agent_tools.engines.network import NetworkPolicy
from agent_tools.errors import InvalidParams
from agent_tools.other_names import EXECUTION, OPTIONS, SANDBOX
from agent_tools.results.execution import Execution, Stream


@pytest.mark.parametrize("name", SANDBOX)
@pytest.mark.parametrize("kind", [Sandbox, AsyncSandbox])
def test_a_sandbox_says_what_is_meant(kind: type, name: str, work_dir: Path) -> None:
    for asked in (kind, kind({"work_dir": str(work_dir)})):
        with pytest.raises(AttributeError, match=f"{kind.__name__} has no attribute '{name}'; use ") as refused:
            getattr(asked, name)
        assert SANDBOX[name] in str(refused.value)
        assert not hasattr(asked, "anything_else")


@pytest.mark.parametrize("name", EXECUTION)
def test_a_run_says_what_is_meant(name: str) -> None:
    run = Execution((Stream("stdout", "1"),))
    with pytest.raises(AttributeError, match=f"Execution has no attribute '{name}'; use "):
        getattr(run, name)
    assert pickle.loads(pickle.dumps(run)) == copy(run) == run


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_says_what_is_meant(name: str) -> None:
    with pytest.raises(InvalidParams) as refused:
        Sandbox(**{name: "x"})  # type: ignore[arg-type]
    assert str(refused.value).startswith(f"A sandbox has no option {name!r}.")
    assert str(refused.value).endswith(f"Use {OPTIONS[name]}.")


def test_a_name_that_nobody_knows_gets_the_nearest() -> None:
    with pytest.raises(InvalidParams, match=r"A sandbox has no option 'memorie'\. Did you mean 'memory'\?"):
        Sandbox(memorie=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("given", [["pypi.org"], ("pypi.org",), {"allow": ["pypi.org"]}])
def test_a_network_may_be_a_list(given: Any) -> None:
    policy = Sandbox(network=given).options.isolation.network
    assert isinstance(policy, NetworkPolicy)
    assert list(policy.allow) == ["pypi.org"]


def test_no_network_is_no_network() -> None:
    assert Sandbox(network=False).options.isolation.network == "none"


def test_all_of_the_internet_is_refused_with_what_to_give() -> None:
    with pytest.raises(InvalidParams, match="list the names that code may reach"):
        Sandbox(network=True)  # type: ignore[arg-type]


def test_a_size_may_be_written_as_kubernetes_writes_it() -> None:
    for text in ("512Mi", "512m", "512MiB", "0.5g"):
        assert Sandbox(memory=text).options.isolation.memory == 512 * 1024**2


def test_a_path_is_named_as_the_option_that_it_is(tmp_path: Path) -> None:
    for path in (tmp_path, str(tmp_path)):
        with pytest.raises(InvalidParams, match="or work_dir="):
            Sandbox(path)  # type: ignore[arg-type]
