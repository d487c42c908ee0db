"""The sentences beside errors: they name what can be done, and stand only where it helps."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from agent_tools.engines.context import shipped
from agent_tools.guest.kernel import next_steps
from agent_tools.guest.kernel.next_steps import advice


def raised(code: str) -> BaseException:
    try:
        exec(code, {})
    except Exception as exc:
        return exc
    raise AssertionError("no error")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("kaleido", "the image's flavour `full` has it"),
        ("nosuchmodule", "the option packages=['nosuchmodule'] adds it"),
        ("Crypto", "the option packages=['pycryptodome'] adds it"),
        ("nosuchmodule.part", "nosuchmodule is not installed"),
    ],
)
def test_a_missing_package_is_told_with_what_has_it(module: str, told: str) -> None:
    assert told in advice(raised(f"import {module}"))
    optional = f"try:\n    import {module}\nexcept ImportError as e:\n    raise ImportError('optional') from e"
    assert told in advice(raised(optional))


@pytest.mark.parametrize("code", ["import json.part", "from json import part", "1 / 0", "raise ImportError('x')"])
def test_a_part_that_a_package_does_not_have_is_not_said_to_be_missing(code: str) -> None:
    assert advice(raised(code)) == ""


def test_what_is_told_of_flavours_is_in_them() -> None:
    full = shipped("docker/flavours/full.in").read_text().replace("-", "_")
    lean = shipped("docker/stack.in").read_text().replace("-", "_").split()
    names = {"cv2": "opencv_python_headless", "docx": "python_docx", "pptx": "python_pptx", "skimage": "scikit_image",
             "vl_convert": "vl_convert_python"}  # fmt: skip
    packages = {names.get(module, module) for module in next_steps.IN_FULL.split()}
    in_full = {line.split("<")[0].split()[0] for line in full.splitlines() if line and not line.startswith("#")}
    assert packages == in_full
    assert not packages & set(lean)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("sale.csv", "Did you mean 'sales.csv'?"),
        ("SALES.csv", "Did you mean 'sales.csv'?"),
        ("/content/sales.csv", "Did you mean 'sales.csv'?"),
        ("b.txt", "Did you mean 'sub/b.txt'?"),
        ("sub/x/y.txt", "There is no folder 'sub/x'; the working directory is "),
        ("sub/other.txt", "The folder 'sub' has 'b.txt'."),
        ("nothing like it", "The working directory has 'sales.csv', 'sub/'."),
    ],
)
def test_a_missing_file_is_told_with_what_is_there(folder: Path, name: str, told: str) -> None:
    (folder / "sales.csv").touch()
    (folder / "sub").mkdir()
    (folder / "sub" / "b.txt").touch()
    assert advice(raised(f"open({name!r})")).startswith(told)


def test_a_large_folder_is_told_in_a_few_names(folder: Path) -> None:
    for number in range(3_000):
        (folder / f"{number:04}.csv").touch()
    told = advice(raised("open('data')"))
    assert told.endswith(" more.")
    assert len(told) < 200


def test_a_missing_program_is_no_missing_file() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        subprocess.run(["no-such-program"])
    assert advice(caught.value) == (
        "There is no program no-such-program in this image; the option debian_packages adds Debian's packages."
    )


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise MemoryError", "usecols"),
        ("raise RuntimeError('This event loop is already running')", "`await`"),
        ("raise OSError(2, 'gone')", ""),
        ("raise ValueError('unknown file extension: .docx')", ""),
        ("open(9999)", ""),
    ],
)
def test_other_errors_are_told_with_a_next_step_if_there_is_one(code: str, told: str) -> None:
    said = advice(raised(code))
    assert told in said
    assert bool(said) == bool(told)


def test_an_error_that_cannot_be_read_is_shown_without_advice() -> None:
    assert advice(raised("class E(ImportError):\n    __str__ = None\n    name = 5\nraise E")) == ""
