from collections.abc import Iterator

import pytest

from agent_tools.tools.registry import TOOL_REGISTRY, register_tool


@pytest.fixture(autouse=True)
def restored_registry() -> Iterator[None]:
    before = dict(TOOL_REGISTRY)
    yield
    TOOL_REGISTRY.clear()
    TOOL_REGISTRY.update(before)


def tool_class(name: str = "") -> type:
    return type("Tool", (), {"name": name})


def test_registering_stores_the_class_and_gives_it_back() -> None:
    cls = tool_class()
    assert register_tool("my_tool")(cls) is cls
    assert TOOL_REGISTRY["my_tool"] is cls


def test_registering_sets_the_name() -> None:
    assert register_tool("my_tool")(tool_class()).name == "my_tool"


def test_a_class_without_any_name_attribute_gets_one() -> None:
    assert register_tool("my_tool")(type("Bare", (), {})).name == "my_tool"


def test_a_class_that_already_has_this_very_name_is_taken() -> None:
    assert register_tool("my_tool")(tool_class("my_tool")).name == "my_tool"


def test_a_taken_name_is_refused_and_the_first_class_stays() -> None:
    first = register_tool("my_tool")(tool_class())
    message = r"^Tool `my_tool` already exists! Please ensure that the tool name is unique\.$"
    with pytest.raises(ValueError, match=message):
        register_tool("my_tool")(tool_class())
    assert TOOL_REGISTRY["my_tool"] is first


def test_overwriting_warns_and_replaces() -> None:
    register_tool("my_tool")(tool_class())
    second = tool_class()
    with pytest.warns(UserWarning, match=r"^Tool `my_tool` already exists! Overwriting with class"):
        register_tool("my_tool", allow_overwrite=True)(second)
    assert TOOL_REGISTRY["my_tool"] is second


def test_overwriting_nothing_does_not_warn() -> None:
    register_tool("my_tool", allow_overwrite=True)(tool_class())
    assert "my_tool" in TOOL_REGISTRY


def test_a_conflicting_name_is_refused_and_nothing_registered() -> None:
    message = r'^Tool\.name="other" conflicts with @register_tool\(name="my_tool"\)\.$'
    with pytest.raises(ValueError, match=message):
        register_tool("my_tool")(tool_class("other"))
    assert "my_tool" not in TOOL_REGISTRY
