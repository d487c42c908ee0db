"""What is told where the package of a framework is not there."""

from __future__ import annotations

import pytest

from agent_tools.extras import extra


def test_a_missing_package_names_the_extra_that_brings_it() -> None:
    how = r"No module named 'nowhere'. It comes with an extra: pip install 'agent-tools-sandbox\[some\]'"
    with pytest.raises(ModuleNotFoundError, match=how) as caught, extra("some"):
        import nowhere  # type: ignore[import-not-found]  # noqa: F401
    assert caught.value.name == "nowhere"
