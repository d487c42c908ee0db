"""The documentation as a site: where its links lead, and that nothing of it comes from another server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_tools.version import __version__
from supply import site

PAGES = {page.relative_to(site.DOCS).as_posix() for page in site.DOCS.rglob("*.md")}


def named(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    else:
        for each in part.values() if isinstance(part, dict) else part:
            yield from named(each)


def test_every_page_is_in_the_navigation_once() -> None:
    pages = list(named(yaml.safe_load((site.ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(pages) == sorted(PAGES | {site.place(site.ROOT / name) for name in site.PAGES})


@pytest.mark.parametrize(
    ("page", "link", "becomes"),
    [
        ("pool.md", "[a](state.md#how)", "[a](state.md#how)"),
        ("integrations/dspy.md", "[a](../code-mode.md)", "[a](../code-mode.md)"),
        ("pool.md", "[a](../SECURITY.md#egress)", "[a](project/SECURITY.md#egress)"),
        ("integrations/dspy.md", "[a](../../examples/01_call.py)", "[a](../project/examples/01_call.py)"),
        ("project/SECURITY.md", "[a](docs/jupyter.md)", "[a](../jupyter.md)"),
        ("project/SECURITY.md", "[`a` b](.github/workflows/release.yml)", "[`a` b](github/workflows/release.yml)"),
        ("project/CONTRIBUTING.md", "[a](README.md)", "[a](../index.md)"),
        ("pool.md", "[a folder](../examples)", "a folder"),
        ("pool.md", "[a](https://example.org/b) [c](#d)", "[a](https://example.org/b) [c](#d)"),
        ("pool.md", "```\n[a](../SECURITY.md)\n```", "```\n[a](../SECURITY.md)\n```"),
    ],
)
def test_a_link_leads_to_its_place_in_the_site(page: str, link: str, becomes: str) -> None:
    assert site.rewritten(link, page) == becomes


def test_a_link_out_of_the_project_is_an_error() -> None:
    with pytest.raises(ValueError, match="passwd"):
        site.rewritten("[a](../../../../../../../../etc/passwd)", "pool.md")


def test_files_that_pages_link_to_come_along_once() -> None:
    found = list(site.outside(site.DOCS / page for page in PAGES))
    assert len(found) == len(set(found))
    assert {site.ROOT / "SECURITY.md", site.ROOT / "examples" / "01_call.py"} <= set(found)
    assert all(path.is_file() and not path.is_relative_to(site.DOCS) for path in found)


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://example.org/a.js"></script>',
        "<script async src=//example.org/a.js></script>",
        '<link rel="stylesheet" href="https://example.org/a.css">',
        "<img alt='a' src='http://example.org/a.png'>",
        "@font-face { src: url(https://example.org/a.woff2) }",
        '@import "https://example.org/a.css";',
    ],
)
def test_what_a_browser_would_fetch_elsewhere_is_found(text: str) -> None:
    assert site.remote(text)


@pytest.mark.parametrize(
    "text",
    [
        '<a href="https://example.org">a</a>',
        '<script src="assets/a.js"></script>',
        '<link rel="canonical" href="https://example.org/a.html">',
    ],
)
def test_links_to_other_servers_and_files_of_the_site_may_stay(text: str) -> None:
    assert site.remote(text) is None


def test_every_picture_is_small() -> None:
    pictures: list[Path] = sorted((site.DOCS / "images").iterdir())
    assert [each.name for each in pictures if each.stat().st_size > 120_000] == []


@pytest.mark.parametrize(
    ("remote", "link"),
    [
        ("https://github.com/o/n.git", "https://github.com/o/n"),
        ("git@gitlab.example:a/b/c.git", "https://gitlab.example/a/b/c"),
        ("https://git.example/o/n/", "https://git.example/o/n"),
        ("https://user:password@git.example/o/n", ""),
        ("https://git.example:8443/o/n", ""),
        ("ssh://git@git.example/o/n", ""),
        ("/srv/clone", ""),
        ("", ""),
    ],
)
def test_the_foot_of_a_page_has_the_version_and_links_the_repository(remote: str, link: str) -> None:
    text = site.footer(remote)
    assert text.startswith(f"agent_tools {__version__}")
    assert re.findall(r'href="(.*?)"', text) == ([link] if link else [])
