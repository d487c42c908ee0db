"""What is told where the package of a framework is not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agent_tools.extras import extra, pip_install, requirement_from

GIT = {"url": "https://git.example/a.git", "vcs_info": {"vcs": "git", "commit_id": "1d"}}


def test_a_missing_package_names_the_extra_that_brings_it() -> None:
    how = re.escape(f"No module named 'nowhere'. It needs an extra: {pip_install('some')}")
    with pytest.raises(ModuleNotFoundError, match=how) as caught, extra("some"):
        import nowhere  # type: ignore[import-not-found]  # noqa: F401
    assert caught.value.name == "nowhere"


@pytest.mark.parametrize(
    ("record", "source"),
    [
        pytest.param({}, "agent-tools-sandbox[mcp]", id="an index"),
        pytest.param(GIT, "agent-tools-sandbox[mcp] @ git+https://git.example/a.git@1d", id="a repository"),
        pytest.param({"url": "file:///nowhere/a.whl"}, "agent-tools-sandbox[mcp]", id="a file that is gone"),
    ],
)
def test_an_extra_comes_from_the_source_of_this_installation(record: dict[str, Any], source: str) -> None:
    assert requirement_from(record, "mcp") == source


def test_an_extra_of_a_checkout_comes_from_the_checkout(tmp_path: Path) -> None:
    checkout = tmp_path / "a folder"
    checkout.mkdir()
    assert requirement_from({"url": checkout.as_uri(), "dir_info": {}}, "mcp") == f"{checkout}[mcp]"
