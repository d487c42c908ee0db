"""The sentences beside errors: they name what can be done, and stand only where it helps."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from agent_tools.engines.package_data import shipped
from agent_tools.guest.kernel import next_steps
from agent_tools.guest.kernel.module_names import DISTRIBUTIONS
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
        ("Crypto", "the option packages=['pycryptodome'] adds it"),
        ("Crypto.Cipher", "Crypto is not installed"),
        ("community", "packages=['python-louvain']"),
        ("serial", "packages=['pyserial']"),
        ("nosuchmodule.part", "There is no module nosuchmodule here, and no package is known for it."),
    ],
)
def test_a_missing_package_is_told_with_what_has_it(module: str, told: str) -> None:
    assert told in advice(raised(f"import {module}"))
    optional = f"try:\n    import {module}\nexcept ImportError as e:\n    raise ImportError('optional') from e"
    assert told in advice(raised(optional))


@pytest.mark.parametrize("code", ["import json.part", "from json import part", "1 / 0", "raise ImportError('x')"])
def test_a_part_that_a_package_does_not_have_is_not_said_to_be_missing(code: str) -> None:
    assert advice(raised(code)) == ""


@pytest.mark.parametrize("module", ["pnadas", "my_utils", "my_helper", "nosuchmodule", "helpers"])
def test_no_package_is_proposed_for_a_name_that_anybody_may_register(module: str) -> None:
    told = advice(raised(f"import {module}"))
    assert told.startswith(f"There is no module {module} here, and no package is known for it.")
    assert "packages=" not in told
    assert "pip" not in told
    assert ("Did you mean pandas?" in told) == (module == "pnadas")


def test_a_module_of_the_codes_own_is_found_in_its_folder(folder: Path) -> None:
    (folder / "src").mkdir()
    (folder / "src" / "my_helper.py").touch()
    told = advice(raised("import my_helper"))
    assert told == "'src/my_helper.py' is there: sys.path.insert(0, 'src') lets code import it."


def test_the_table_of_modules_is_long_and_proposes_no_module_of_python() -> None:
    assert len(DISTRIBUTIONS) >= 300
    assert not DISTRIBUTIONS.keys() & sys.stdlib_module_names
    assert all(re.fullmatch(r"[a-z0-9]+([-.][a-z0-9]+)*", package) for package in DISTRIBUTIONS.values())


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("café".encode("cp1252"), "Encodings that decode it: "),
        ("café.".encode("cp1252"), "cp1252"),
        ("数据分析".encode("gb18030"), "Encodings that decode it: gb18030"),
        ("数据".encode("gb18030")[:-1], "Encodings that decode it: gb18030"),
        ("データ".encode("shift_jis"), "shift_jis"),
        ("text".encode("utf-16"), "give encoding='utf-16'"),
        (b"PK\x03\x04\xff", "pandas.read_excel"),
        (b"%PDF-1.7\xff", "a PDF"),
    ],
)
def test_bytes_that_are_no_utf8_are_told_with_what_they_may_be(data: bytes, told: str) -> None:
    with pytest.raises(UnicodeDecodeError) as caught:
        data.decode()
    assert told in advice(caught.value)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("sudo apt-get install -y jq", next_steps.NO_PROGRAMS),
        ("A=1 no-such-program -x", "There is no program no-such-program in this image."),
        ("libreoffice --headless a.docx", "the image's flavour `office` has it"),
        ("ls /nowhere", ""),
        ("", ""),
    ],
)
def test_a_failed_command_is_told_with_what_its_program_needs(
    command: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    said = next_steps.of_command(command.split(), 127)
    assert told in said
    assert bool(said) == bool(told)


def test_a_program_that_failed_by_itself_is_not_said_to_be_missing() -> None:
    assert next_steps.of_command(["exit", "3"], 3) == ""
    assert next_steps.of_command(["apt-get", "update"], 100) == next_steps.NO_PROGRAMS


def test_missing_data_of_nltk_is_told() -> None:
    assert "raw.githubusercontent.com" in advice(raised("raise LookupError('Use nltk.download(1)')"))


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
        "There is no program no-such-program in this image. For the operator of this sandbox: the option "
        "debian_packages adds Debian's packages."
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
