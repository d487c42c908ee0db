"""The tables of limits and options in docs/, made from the settings: `python -m supply.limits`, or with --check."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = (DOCS / "limits.md", DOCS / "kubernetes.md", DOCS / "sign-on.md")
_TABLE = re.compile(r"(<!-- table: ([\w.]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_UNITS = (("KiB", 1024), ("MiB", 1024**2), ("GiB", 1024**3))


@dataclasses.dataclass(frozen=True)
class Setting:
    """A field of a class of settings: its type and default as they are written, and what its text says."""

    name: str
    annotation: str
    default: str
    value: Any
    text: str

    @property
    def unit(self) -> str:
        """The unit: s, bytes, characters, pixels, or nothing for numbers, names and lists."""
        if self.annotation.startswith(("float", "Seconds")) and not self.text.startswith("CPU "):
            return "s"
        if "chars" in self.name or self.text.startswith("Characters"):
            return "characters"
        if "bytes" in self.name or re.search(r"\b[KMG]IB\b", self.default):
            return "bytes"
        return "pixels" if "pixels" in self.name else ""

    @property
    def shown(self) -> str:
        """The default as a reader wants it: 4 GiB, 100,000, 30, yes, none."""
        if not self.default:
            return "required"
        if self.value is dataclasses.MISSING:
            made = self.default.partition("lambda: ")[2].removesuffix(")")
            return f"`{made}`" if made else "none"
        if isinstance(self.value, bool):
            return "yes" if self.value else "no"
        if self.unit == "bytes" and isinstance(self.value, int):
            return _bytes(self.value)
        if isinstance(self.value, (int, float)):
            return f"{self.value:,.10g}"
        if isinstance(self.value, (tuple, list)):
            return ", ".join(f"`{each}`" for each in self.value) or "none"
        if dataclasses.is_dataclass(self.value) or callable(self.value) or not self.value:
            return "none"
        return f"`{self.value}`"


def settings(kind: type) -> Iterator[Setting]:
    """Yield the fields that a class defines itself, but for those without a text."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    if not isinstance(body, ast.ClassDef):
        return
    values = {each.name: each.default for each in dataclasses.fields(kind)}
    for line, after in zip(body.body, [*body.body[1:], ast.Pass()]):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(after, ast.Expr):
            name, default = line.target.id, ast.unparse(line.value) if line.value else ""
            text = " ".join(ast.literal_eval(after.value).split())
            yield Setting(name, ast.unparse(line.annotation), default, values[name], text)


def table(kind: type) -> str:
    """Return the fields of a class of settings as a table in Markdown."""
    rows = [f"| `{each.name}` | {each.shown} | {each.unit} | {each.text} |" for each in settings(kind)]
    return "\n".join(["| name | default | unit | |", "|---|---|---|---|", *rows])


def rendered(page: str) -> str:
    """Return a page with every table between its marks made anew."""

    def fill(found: re.Match[str]) -> str:
        module, _, name = found[2].rpartition(".")
        return f"{found[1]}{table(getattr(importlib.import_module(module), name))}\n{found[3]}"

    return _TABLE.sub(fill, page)


def _bytes(count: int) -> str:
    fitting = [(name, size) for name, size in _UNITS if count and count % size == 0]
    return f"{count // fitting[-1][1]:,} {fitting[-1][0]}" if fitting else f"{count:,}"


def main() -> None:
    """Write the pages; with --check, end with 1 if one is not what the settings say."""
    for page in PAGES:
        before = page.read_text()
        after = rendered(before)
        if "--check" in sys.argv and before != after:
            sys.exit(f"docs/{page.name} is not what the settings say: .venv/bin/python -m supply.limits writes it.")
        page.write_text(after)


if __name__ == "__main__":
    main()
