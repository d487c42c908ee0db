"""The bundle of a kernel's modules: taken from while it is what lies on the disk, passed over otherwise."""

from __future__ import annotations

import importlib
import inspect
import os
import py_compile
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from agent_tools.guest import bundle

SOURCE = "from . import inner\n\n\ndef fail():\n    raise ValueError('here')\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of two modules, compiled and on the path, that has not been imported."""
    folder = tmp_path / "bundled_package"
    folder.mkdir()
    (folder / "__init__.py").write_text(SOURCE)
    (folder / "inner.py").write_text("NAME = 'as it was'\n")
    for source in folder.glob("*.py"):
        py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    bundle.uninstall()
    forget()


@pytest.fixture
def bundled(package: Path, tmp_path: Path) -> Path:
    """A bundle of the package."""
    importlib.import_module("bundled_package")
    bundle.write(str(tmp_path / "bundle"), [sys.modules[name] for name in ("bundled_package", "bundled_package.inner")])
    forget()
    return tmp_path / "bundle"


def forget() -> None:
    for name in [name for name in sys.modules if name.startswith("bundled_package")]:
        del sys.modules[name]


def imported(path: Path) -> ModuleType:
    bundle.install(str(path))
    return importlib.import_module("bundled_package")


def is_from_bundle(module: ModuleType) -> bool:
    assert module.__spec__
    return isinstance(module.__spec__.loader, bundle.BundledLoader)


def test_modules_come_from_the_bundle(bundled: Path) -> None:
    module = imported(bundled)
    assert is_from_bundle(module)
    assert is_from_bundle(module.inner)
    assert module.inner.NAME == "as it was"


def test_a_module_is_what_it_would_be_from_its_file(bundled: Path, package: Path) -> None:
    module = imported(bundled)
    facts = (module.__file__, module.__package__, list(module.__path__), module.inner.__package__, module.__cached__)
    bundle.uninstall()
    forget()
    again = importlib.import_module("bundled_package")
    assert not is_from_bundle(again)
    assert facts == (again.__file__, again.__package__, list(again.__path__), again.inner.__package__, again.__cached__)


def test_sources_and_tracebacks_are_those_of_the_file(bundled: Path, package: Path) -> None:
    module = imported(bundled)
    assert "raise ValueError" in inspect.getsource(module.fail)
    try:
        module.fail()
    except ValueError as exc:
        (frame,) = traceback.extract_tb(exc.__traceback__)[1:]
    assert (frame.filename, frame.line) == (str(package / "__init__.py"), "raise ValueError('here')")


def test_a_module_can_be_loaded_again(bundled: Path) -> None:
    assert importlib.reload(imported(bundled)).inner.NAME == "as it was"


@pytest.mark.parametrize("change", ["another size", "another time"])
def test_a_module_that_has_changed_comes_from_its_file(bundled: Path, package: Path, change: str) -> None:
    inner = package / "inner.py"
    was = inner.stat()
    (package / "__pycache__").rename(package / "gone")
    inner.write_text("NAME = 'another'\n" if change == "another size" else "NAME = 'as it is!'\n")
    os.utime(inner, (was.st_atime, was.st_mtime + (change == "another time") * 60))
    module = imported(bundled)
    assert not is_from_bundle(module.inner)
    assert module.inner.NAME != "as it was"


def test_a_module_that_is_gone_is_not_found(bundled: Path, package: Path) -> None:
    (package / "inner.py").unlink()
    with pytest.raises(ImportError):
        imported(bundled)


@pytest.mark.parametrize("content", [None, b"", b"\0\0\0\0\0\0\0\0"], ids=["none", "empty", "of another Python"])
def test_without_a_bundle_modules_come_from_their_files(package: Path, tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "bundle").write_bytes(content)
    assert imported(tmp_path / "bundle").inner.NAME == "as it was"


def test_later_imports_do_not_look_into_the_bundle(bundled: Path) -> None:
    bundle.install(str(bundled))
    bundle.uninstall()
    assert not is_from_bundle(importlib.import_module("bundled_package"))
