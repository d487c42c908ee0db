"""A hook of MkDocs: files that pages link to become part of the site, and no page needs another server."""

from __future__ import annotations

import posixpath
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from agent_tools.version import __version__

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PROJECT = "project"
"""The part of the site with what lies outside docs/."""
PAGES = ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
"""Documents outside docs/ that are pages of the site."""
FOUND_FIRST = ("options.md", "limits.md")

_REPOSITORY = re.compile(r"(?:https://(?=[^:]*$)|git@)([\w.-]+)[:/]([\w./-]+?)(?:\.git)?/?")
"""The address of a repository, as git has it: no port, user or password."""
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
_REMOTE = re.compile(
    r"""<(?:script|img|iframe|audio|video|source)\b[^>]*\bsrc=["']?(?:https?:)?//"""
    r"""|<link\b(?![^>]*\brel=["']?(?:alternate|canonical|next|prev)\b)[^>]*\bhref=["']?(?:https?:)?//"""
    r"""|@import\s+["'(]|url\(["']?(?:https?:)?//""",
    re.IGNORECASE,
)


def links(markdown: str) -> Iterator[str]:
    """Yield the targets of links to files, without their anchors."""
    for part in _FENCE.split(markdown):
        if not part.startswith("```"):
            yield from (found[3] for found in _LINK.finditer(part))


def source(page: str) -> Path:
    """Return the file that a page of the site is made from, by its place in the site's sources."""
    inside = page.removeprefix(f"{PROJECT}/")
    return ROOT / inside if inside != page else DOCS / page


def place(path: Path) -> str:
    """Return the place of a file of the project in the site's sources.

    Raises:
        ValueError: the file is outside the project.
    """
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    return f"{PROJECT}/{path.relative_to(ROOT).as_posix().lstrip('.')}"


def rewritten(markdown: str, page: str) -> str:
    """Return a page whose links lead to places in the site; links to folders become their text."""

    def link(found: re.Match[str]) -> str:
        path = (source(page).parent / found[3]).resolve()
        if path == ROOT / "README.md":
            path = DOCS / "index.md"
        if path.is_dir():
            return found[2]
        return f"{found[1]}[{found[2]}]({posixpath.relpath(place(path), posixpath.dirname(page))}{found[4] or ''})"

    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in _FENCE.split(markdown))


def outside(pages: Iterator[Path]) -> Iterator[Path]:
    """Yield the documents outside docs/ that are pages, and the files outside it that pages link to, each once."""
    documents = [ROOT / name for name in PAGES]
    found = dict.fromkeys(documents)
    for page in (*pages, *documents):
        for target in links(page.read_text()):
            path = (page.parent / target).resolve()
            if path.is_file() and path != ROOT / "README.md" and not path.is_relative_to(DOCS):
                found[path] = None
    yield from found


def remote(text: str) -> str | None:
    """Return the first thing in HTML or CSS that a browser would fetch from another server."""
    found = _REMOTE.search(text)
    return found[0] if found else None


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that lie outside docs/."""
    from mkdocs.structure.files import File

    for path in outside(DOCS / page.src_uri for page in files.documentation_pages()):
        if path.suffix == ".md" and path.name not in PAGES:
            continue
        files.append(File.generated(config, place(path), abs_src_path=str(path)))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name the version at the foot of each page, and link the repository that the checkout is from."""
    ask = ["git", "-C", str(ROOT), "config", "--get", "remote.origin.url"]
    asked = subprocess.run(ask, capture_output=True, text=True, check=False)
    config.copyright = footer(asked.stdout.strip())
    return config


def footer(remote: str) -> str:
    """Return the text at the foot of each page, with a link if the address of the repository is a public one's."""
    found = _REPOSITORY.fullmatch(remote)
    link = f' · <a href="https://{found[1]}/{found[2]}">source</a>' if found else ""
    return f"agent_tools {__version__}{link}"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Lead links to places in the site, and searches to the pages that have all names."""
    if page.file.src_uri in FOUND_FIRST:
        page.meta["search"] = {"boost": 4}
    return rewritten(markdown, page.file.src_uri)


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site that would make its reader's browser ask another server.

    Raises:
        PluginError: a page or a stylesheet would.
    """
    from mkdocs.exceptions import PluginError

    for path in sorted(Path(config.site_dir).rglob("*")):
        if path.suffix in (".html", ".css") and (found := remote(path.read_text())):
            raise PluginError(f"{path} would fetch {found!r} from another server.")
