import dataclasses
import math
from typing import Any

import pytest

from agent_tools.engines.isolation import Isolation
from agent_tools.errors import InvalidParams
from agent_tools.limits import GIB, MIB


def test_the_defaults_isolate() -> None:
    isolation = Isolation()
    assert isolation.network == "none"
    assert isolation.memory == 2 * GIB
    assert isolation.cpus == 1.0
    assert isolation.pids == 256
    assert isolation.runtime is None
    assert isolation.gpus is None
    assert isolation.env == {}


def test_isolation_cannot_be_changed_after_the_fact() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Isolation().network = "host"  # type: ignore[misc]


@pytest.mark.parametrize(
    "field",
    [
        {"network": "bridge"},
        {"network": "my-host"},
        {"network": "hosts"},
        {"memory": 128 * MIB},
        {"cpus": 0.05},
        {"cpus": 2},
        {"pids": 32},
        {"gpus": 1},
        {"gpus": "all"},
        {"runtime": "runsc"},
        {"env": {"A_1": "x", "_b": ""}},
    ],
    ids=str,
)
def test_values_in_range_are_taken(field: dict[str, Any]) -> None:
    ((name, value),) = field.items()
    assert getattr(Isolation(**field), name) == value


@pytest.mark.parametrize(
    "network",
    ["host", "HOST", "Host", "container:abc", "Container:abc", "container:a\nb", "ns:/proc/1/ns/net", "", None, 5],
)
def test_a_network_that_breaks_the_isolation_is_refused(network: Any) -> None:
    with pytest.raises(InvalidParams, match="network="):
        Isolation(network=network)


@pytest.mark.parametrize(
    ("name", "too_little"),
    [
        ("memory", 128 * MIB - 1),
        ("cpus", 0.04),
        ("pids", 31),
        ("tmp", MIB - 1),
        ("home", 4 * MIB - 1),
        ("shm", MIB - 1),
        ("file_size", MIB - 1),
        ("open_files", 127),
        ("log", 64 * 1024 - 1),
    ],
)
def test_an_amount_that_is_no_limit_is_refused(name: str, too_little: float) -> None:
    values: list[Any] = [too_little, 0, -1, True, "-2g", "lots", None, math.nan, math.inf]
    assert [value for value in values if f"{name}=" not in refusal(**{name: value})] == []


def test_a_size_may_be_text() -> None:
    isolation = Isolation(memory="1.5g", tmp="64MiB", log="128k")  # type: ignore[arg-type]
    assert (isolation.memory, isolation.tmp, isolation.log) == (3 * GIB // 2, 64 * MIB, 128 * 1024)
    assert "or a size such as '512m' or '4g', of at least 134,217,728" in refusal(memory="lots")
    assert "give a number of at least 32" in refusal(pids="1k")


def refusal(**options: Any) -> str:
    """The message with which a value is refused, empty where it is not."""
    try:
        Isolation(**options)
    except InvalidParams as exc:
        return str(exc)
    return ""


@pytest.mark.parametrize("gpus", [0, -1, True, "ALL", "0,1", 1.5])
def test_gpus_that_are_no_number_are_refused(gpus: Any) -> None:
    with pytest.raises(InvalidParams, match="gpus="):
        Isolation(gpus=gpus)


@pytest.mark.parametrize(
    "env",
    [
        {"": "x"},
        {"A=B": "x"},
        {"A B": "x"},
        {"1A": "x"},
        {"A\n": "x"},
        {"É": "x"},
        {5: "x"},
        {"A": 5},
        {"A": None},
        {"A": "x\0y"},
        ["A=B"],
        None,
    ],
    ids=repr,
)
def test_an_environment_that_cannot_be_passed_is_refused(env: Any) -> None:
    with pytest.raises(InvalidParams, match="env"):
        Isolation(env=env)
