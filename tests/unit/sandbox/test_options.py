from pathlib import Path
from typing import Any

import pytest

from agent_tools import Policy, Sandbox, Toolset
from agent_tools.engines.image_versions import contents_told
from agent_tools.engines.recipe import Recipe
from agent_tools.errors import InvalidParams
from agent_tools.limits import GIB, MIB
from agent_tools.sandbox.options import Options, read_options
from agent_tools.tools import CodeInterpreter


def test_the_options_of_the_image_are_a_recipe() -> None:
    options = Options.read({"packages": ["polars"], "debian_packages": ["jq"], "flavour": "agent"})
    assert options.recipe == Recipe(("polars",), ("jq",), "agent")
    assert Options.read({}).recipe == Recipe()


@pytest.mark.parametrize(
    "cfg",
    [
        *({"flavour": "fat"}, {"debian_packages": "jq"}, {"debian_packages": ["jq; id"]}, {"packages": "polars"}),
        *({"image": "mine", "packages": ["polars"]}, {"image": "mine", "debian_packages": ["jq"]}),
    ],
    ids=str,
)
def test_unusable_options_of_the_image_are_refused(cfg: dict[str, object]) -> None:
    with pytest.raises(InvalidParams):
        Options.read(cfg)


def test_a_recipe_itself_is_no_option() -> None:
    with pytest.raises(InvalidParams, match="no option 'recipe'"):
        Options.read({"recipe": Recipe()})


def test_the_description_stays_unless_versions_are_asked_for(tmp_path: Path) -> None:
    plain = CodeInterpreter({"work_dir": str(tmp_path)})
    told = CodeInterpreter({"work_dir": str(tmp_path), "describe": "versions", "flavour": "newest"})
    assert plain.description == CodeInterpreter.description
    assert told.description == f"{plain.description} {contents_told(Recipe(flavour='newest'))}"
    assert told.function["description"] == told.description


def test_nothing_is_told_of_an_image_of_ones_own(tmp_path: Path) -> None:
    tool = CodeInterpreter({"work_dir": str(tmp_path), "describe": "versions", "image": "mine"})
    assert tool.description == CodeInterpreter.description


def test_another_word_for_describe_is_refused() -> None:
    with pytest.raises(InvalidParams, match="describe='all'"):
        Options.read({"describe": "all"})


def test_a_pool_has_a_size_and_modules() -> None:
    options = Options.read({"pool": 2, "preload": ["numpy", "matplotlib.pyplot", "numpy"], "idle_stop": 60})
    assert (options.ahead.size, options.ahead.preload) == (2, ("numpy", "matplotlib.pyplot"))
    assert options.idle_stop == 60.0
    assert Options.read({}).ahead.size == 0
    assert Options.read({"pool": 0, "preload": (), "idle_stop": 0}).idle_stop == 0.0


@pytest.mark.parametrize(
    ("cfg", "says"),
    [
        ({"pool": -1}, "pool=-1"),
        ({"pool": True}, "pool=True"),
        ({"pool": 1.5}, "pool=1.5"),
        ({"pool": 33}, "at most 32"),
        ({"pool": 1, "preload": "numpy"}, "list of modules"),
        ({"pool": 1, "preload": ["numpy,os"]}, "list of modules"),
        ({"pool": 1, "preload": [""]}, "list of modules"),
        ({"pool": 1, "preload": [1]}, "list of modules"),
        ({"preload": ["numpy"]}, "pool=1"),
        ({"pool": 1, "preload": ["numpy"], "network": {"allow": ["pypi"]}}, "egress allowlist"),
        ({"idle_stop": 0.5}, "at least 1 s"),
        ({"idle_stop": -1}, "idle_stop"),
        ({"idle_stop": "soon"}, "idle_stop"),
        ({"runtime": ""}, "runtime="),
        ({"image": ""}, "image="),
        ({"image": 5}, "image=5"),
        ({"work_dir": 3}, "work_dir=3"),
        ({"work_dir": b"x"}, "work_dir="),
        ({"static_url": 5}, "static_url=5"),
        ({"figures_dir": "/etc/passwd/figures"}, "figures_dir='/etc/passwd/figures'"),
        ({"hostcalls": 3}, "hostcalls=3"),
        ({"hostcalls": "price"}, "hostcalls='price'"),
        ({"memory": 2.0**30 + 0.5}, "whole number"),
        ({"pids": 99.5}, "pids=99.5"),
        ({"limits": {"max_commands": float("inf")}}, "max_commands=inf, which is not a positive number"),
    ],
    ids=str,
)
def test_an_unusable_option_is_refused_by_name(cfg: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidParams, match=says):
        Options.read(cfg)


def test_sizes_are_whole_numbers_for_every_engine() -> None:
    isolation = Options.read({"memory": 1.5 * 2**30, "pids": 64.0, "cpus": 1.5}).isolation
    assert [repr(each) for each in (isolation.memory, isolation.pids, isolation.cpus)] == ["1610612736", "64", "1.5"]


@pytest.mark.parametrize("given", [["a"], "work_dir", 5])
def test_options_are_a_dict(given: object) -> None:
    with pytest.raises(InvalidParams, match="give a dict of options"):
        Sandbox(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        *({"timeout": "5"}, {"timeout": 0}, {"timeout": float("nan")}, {"max_calls": "1"}, {"max_calls": -1}),
        *({"max_calls": 1.5}, {"concurrency": 0}, {"concurrency": True}, {"approve": "yes"}),
    ],
    ids=str,
)
def test_an_unusable_policy_is_refused_where_it_is_made(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidParams, match=f"{next(iter(given))}="):
        Policy(**given)


def test_what_is_no_policy_and_no_functions_is_refused() -> None:
    def f() -> int:
        return 1

    with pytest.raises(TypeError, match="is not a Policy"):
        Toolset().add(f, policy={"max_calls": 1})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not a list of functions"):
        Toolset(3)  # type: ignore[arg-type]


def test_options_and_limits_are_read_from_text() -> None:
    given = [
        "pids=64",
        "memory = 1g",
        'env={"A": "1"}',
        "max-work-dir-bytes=2g",
        "command_timeout=5",
        "transport=stdio",
    ]
    options = Options.read(read_options([text.replace(" = ", "=") for text in given]))
    assert (options.isolation.pids, options.isolation.memory, options.transport) == (64, GIB, "stdio")
    assert options.isolation.env == {"A": "1"}
    assert (options.limits.max_work_dir_bytes, options.limits.command_timeout) == (2 * GIB, 5)
    for wrong in ("pids", "=3"):
        with pytest.raises(InvalidParams, match="write NAME=VALUE"):
            read_options([wrong])


def test_sizes_among_limits_are_bytes_or_text() -> None:
    network = {"allow": ["pypi"], "limits": {"max_received": "1m"}}
    options = Options.read(
        {"limits": {"max_file_bytes": "512m"}, "call_limits": {"max_open_bytes": "1k"}, "network": network}
    )
    assert (options.limits.max_file_bytes, options.call_limits.max_open_bytes) == (512 * MIB, 1024)
    assert options.isolation.policy is not None
    assert options.isolation.policy.limits.max_received == MIB
    with pytest.raises(InvalidParams, match="max_calls='1k'"):
        Options.read({"call_limits": {"max_calls": "1k"}})
