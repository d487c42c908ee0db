"""An image's own word on where it comes from."""

from __future__ import annotations

import pytest

from agent_tools.engines.docker.image_origin import Origin, origin_of, origin_on

ID = "sha256:" + "1" * 64
PULLED = "sha256:" + "2" * 64
MIRRORED = "sha256:" + "3" * 64


@pytest.mark.parametrize(
    ("base", "digests", "expected"),
    [
        ("python:3.13-slim-trixie", [f"python@{PULLED}"], ("python:3.13-slim-trixie", PULLED)),
        (f"python@{PULLED}", [f"python@{PULLED}"], ("python", PULLED)),
        (f"python:3.13@{PULLED}", [f"mirror/python@{MIRRORED}", f"python@{PULLED}"], ("python:3.13", PULLED)),
        ("host:5000/python", [f"python@{PULLED}", f"host:5000/python@{MIRRORED}"], ("host:5000/python", MIRRORED)),
        ("renamed:1", [f"python@{PULLED}", f"mirror/python@{MIRRORED}"], ("renamed:1", MIRRORED)),
        ("agent-tools-base:trixie", [], ("agent-tools-base:trixie", ID)),
        ("agent-tools-base:trixie", None, ("agent-tools-base:trixie", ID)),
    ],
)
def test_the_base_has_its_registrys_digest_or_the_engines_id(
    base: str, digests: list[str] | None, expected: tuple[str, str]
) -> None:
    origin = origin_on(base, {"Id": ID, "RepoDigests": digests})
    assert (origin.base, origin.digest) == expected


@pytest.mark.parametrize(
    "facts", [{}, {"Config": None}, {"Config": {"Labels": None}}, {"Config": {"Labels": {"a": "b"}}}]
)
def test_an_image_without_our_labels_has_an_unknown_origin(facts: dict[str, object]) -> None:
    assert origin_of(facts) == Origin("unknown", "unknown", "unknown")
