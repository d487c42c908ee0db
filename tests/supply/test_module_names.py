"""Modules and their packages, beside files of wheels as they were published: `scripts/try modules` asks the index."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest

from supply.module_names import by_package, modules_of

SO = "cpython-311-x86_64-linux-gnu.so"
RECORDED = {
    "attrs": ({"attr", "attrs"}, ("attr/__init__.py", "attrs/__init__.py", "attrs-26.1.0.dist-info/METADATA")),
    "pyyaml": ({"yaml", "_yaml"}, ("_yaml/__init__.py", "yaml/__init__.py", f"yaml/_yaml.{SO}")),
    "pillow": (
        {"PIL"},
        ("PIL/Image.py", f"PIL/_avif.{SO}", "pillow.libs/libavif.so", "pillow-13.0.0.dist-info/RECORD"),
    ),
    "python-multipart": ({"multipart", "python_multipart"}, ("multipart/__init__.py", "python_multipart/__init__.py")),
    "python-dateutil": ({"dateutil"}, ("dateutil/__init__.py", "python_dateutil-4.0.0.dist-info/RECORD")),
    "cffi": ({"cffi", "_cffi_backend"}, (f"_cffi_backend.{SO}", "cffi/__init__.py", "cffi-2.1.1.dist-info/RECORD")),
}


@pytest.mark.parametrize("package", RECORDED)
def test_the_modules_of_a_package_are_read_from_its_wheel(package: str, tmp_path: Path) -> None:
    expected, names = RECORDED[package]
    with ZipFile(tmp_path / "a.whl", "w") as wheel:
        for name in names:
            wheel.writestr(name, "")
    assert modules_of(tmp_path / "a.whl") == expected
    assert set(by_package()[package]) <= expected
