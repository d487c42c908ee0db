"""The names of modules beside those of the packages that have them: `scripts/try modules`.

Downloads the wheel of each package that agent_tools/guest/kernel/module_names.py names, and prints the modules that it
does not have. Packages without wheels are named, too: their modules are known from their documentation only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from zipfile import ZipFile

from agent_tools.guest.kernel.module_names import DISTRIBUTIONS

SECONDS = 300  # one download may take
AT_ONCE = 3
_NOT_MODULES = (".dist-info", ".data", ".libs")


def modules_of(wheel: Path) -> set[str]:
    """Return the top-level modules and packages of a wheel."""
    found = set()
    with ZipFile(wheel) as archive:
        for name in archive.namelist():
            top, *below = name.split("/")
            if name.endswith((".py", ".so")) and not top.endswith(_NOT_MODULES):
                found.add(top if below else top.partition(".")[0])
    return found


def missing_of(package: str, modules: Iterable[str], index: tuple[str, ...] = ()) -> str:
    """Return a line on what a package's wheel lacks; '' if it has all these modules."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--only-binary", ":all:", "-d", folder]
        done = subprocess.run([*command, *index, package], capture_output=True, text=True, timeout=SECONDS, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            return f"{package}: no wheel"
        lacking = set(modules) - modules_of(wheels[0])
        return f"{package} has no {', '.join(sorted(lacking))}" if lacking else ""


def by_package(names: Mapping[str, str] = DISTRIBUTIONS) -> dict[str, list[str]]:
    """Return the modules of each package."""
    found: dict[str, list[str]] = {}
    for module, package in names.items():
        found.setdefault(package, []).append(module)
    return found


def main() -> int:
    """Check the packages that are named, or all; return 1 if one lacks a module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", help="packages of the table; all of them by default")
    wanted = parser.parse_args().packages
    table = {package: modules for package, modules in by_package().items() if not wanted or package in wanted}
    with ThreadPoolExecutor(AT_ONCE) as threads:
        lines = list(filter(None, threads.map(partial(_line, table), table)))
    print("\n".join(lines))
    wrong = [line for line in lines if not line.endswith("no wheel")]
    print(f"{len(table)} packages, {len(lines) - len(wrong)} without a wheel, {len(wrong)} wrong")
    return int(bool(wrong))


def _line(table: Mapping[str, list[str]], package: str) -> str:
    return missing_of(package, table[package])


if __name__ == "__main__":
    sys.exit(main())
