"""Whether a command prepares the sandbox's image before it starts."""

from __future__ import annotations

from typing import Any

import pytest

from agent_tools.cli import image
from agent_tools.sandbox.options import Options


@pytest.mark.parametrize("cfg", [{"engine": "ray"}, {"engine": "kubernetes"}, {"image": "mine:1"}])
def test_another_engine_or_a_given_image_needs_no_docker(cfg: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "DockerEngine", lambda: pytest.fail("Docker was asked"))
    image.ensure_with_progress(Options.read(cfg))


def test_the_option_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Engine:
        def has_image(self, tag: str) -> bool:
            asked.append(tag)
            return True

    monkeypatch.setattr(image, "DockerEngine", Engine)
    monkeypatch.setenv("AGENT_TOOLS_ENGINE", "kubernetes")
    image.ensure_with_progress(Options.read({"engine": "docker"}))
    image.ensure_with_progress(Options.read({}))
    assert len(asked) == 1
