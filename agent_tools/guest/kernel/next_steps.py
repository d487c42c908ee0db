"""The sentence beside an error that says what to do next, where the error's own words leave a model without it."""

import difflib
import errno
import os
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from ..packages import PLACE

MAX_LISTED = 8  # names of files that are told
MAX_LOOKED_AT = 2_000  # names of files that are looked at for one that was meant
MAX_LINKS = 10  # exceptions that one came of
SKIPPED = frozenset((".git", "__pycache__", "node_modules"))
DISTRIBUTIONS = {
    "bs4": "beautifulsoup4",
    "Crypto": "pycryptodome",
    "cv2": "opencv-python-headless",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "fitz": "pymupdf",
    "PIL": "pillow",
    "pptx": "python-pptx",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Modules whose package has another name."""
IN_FULL = (
    "altair cv2 docx duckdb geopandas html5lib imageio imageio_ffmpeg ipywidgets kaleido markdown nltk numexpr "
    "pdfplumber plotly polars pptx pypdf reportlab rich shapely skimage sqlalchemy tables vl_convert wordcloud xarray "
    "xlrd"
)
"""Modules that the image's flavour `full` has beyond `lean`."""
IN_AGENT = "pytest"
"""Modules that the flavour `agent` has beyond `lean`."""
READ_LESS = "Use less memory at once: read only some columns (usecols), smaller types (dtype) or parts (chunksize)."
AWAIT = "Use `await` here: cells may await at their top level."
NO_FFMPEG = (
    "There is no ffmpeg here, so save the animation as .gif (writer='pillow'); the image's flavour `full` has it."
)


def advice(exc: BaseException) -> str:
    """Return what to say beside an error; '' if its own words are enough."""
    try:
        return _advice(exc)
    except Exception:  # noqa: BLE001  (whatever a class of the code's own raises)
        return ""


def _advice(exc: BaseException) -> str:
    text = str(exc)
    match exc:
        case ImportError():
            missing = next((each for each in _chain(exc) if isinstance(each, ModuleNotFoundError)), None)
            return of_module(missing.name or "") if missing else ""
        case FileNotFoundError() if exc.errno == errno.ENOENT and isinstance(exc.filename, (str, bytes)):
            name = os.fsdecode(exc.filename)
            return _of_program(name) if _started_a_program(exc) else _of_file(name)
        case MemoryError():
            return READ_LESS
        case RuntimeError() if "event loop is already running" in text or "running event loop" in text:
            return AWAIT
        case ValueError() if re.fullmatch(r"unknown file extension: \.(mp4|mov|avi|mkv|webm)", text):
            return "" if shutil.which("ffmpeg") else NO_FFMPEG
    return ""


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """Yield an exception and what it came of."""
    link: BaseException | None = exc
    for _ in range(MAX_LINKS):
        if link is None:
            return
        yield link
        link = link.__cause__ or link.__context__


def of_module(name: str) -> str:
    """Return how to have a module that is not installed; '' if its package is there."""
    module = name.partition(".")[0]
    if not module or find_spec(module) or module in sys.stdlib_module_names:
        return ""
    package = DISTRIBUTIONS.get(module, module)
    if os.path.isdir(PLACE):
        return f"{module} is not installed; where the package index is allowed, `%pip install {package}` installs it."
    flavours = [name for name, modules in (("full", IN_FULL), ("agent", IN_AGENT)) if module in modules.split()]
    has = f"the image's flavour `{flavours[0]}` has it" if flavours else f"the option packages=['{package}'] adds it"
    return (
        f"{module} is not installed and cannot be installed from here: use what `%pip list` shows. "
        f"For whoever runs this sandbox: {has}."
    )


def _started_a_program(exc: BaseException) -> bool:
    """Return whether an error was raised by the standard library as it started a program."""
    link = exc.__traceback__
    while link and link.tb_next:
        link = link.tb_next
    return bool(link and os.path.basename(link.tb_frame.f_code.co_filename) == "subprocess.py")


def _of_program(name: str) -> str:
    if os.path.sep in name or shutil.which(name):
        return ""
    return f"There is no program {name} in this image; the option debian_packages adds Debian's packages."


def _of_file(name: str) -> str:
    """Return what is there instead of a file: names like it, else those beside it."""
    path = Path(name)
    if path.exists():  # it is there by now
        return ""
    near = [each for each in _files(Path()) if each.name.lower() == path.name.lower()]
    folder = path.parent
    if not near and folder.is_dir():
        names = [each.name for each in _entries(folder)]
        near = [folder / each for each in difflib.get_close_matches(path.name, names, 3, 0.7)]
    if near:
        return f"Did you mean {' or '.join(repr(str(each)) for each in near[:3])}?"
    if not folder.is_dir():
        return f"There is no folder {str(folder)!r}; the working directory is {os.getcwd()!r}. {_listing(Path())}"
    return _listing(folder)


def _listing(folder: Path) -> str:
    names = sorted(f"{each.name}/" if each.is_dir() else each.name for each in _entries(folder))
    where = "The working directory" if folder == Path() else f"The folder {str(folder)!r}"
    if not names:
        return f"{where} is empty."
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return f"{where} has {', '.join(map(repr, names[:MAX_LISTED]))}{more}."


def _files(folder: Path) -> Iterator[Path]:
    """Yield files below a folder, those in folders near it first, as far as that is looked at."""
    folders, left = [folder], MAX_LOOKED_AT
    for each in folders:  # which grows meanwhile
        for entry in _entries(each):
            left -= 1
            if left < 0:
                return
            if entry.is_dir() and not entry.is_symlink():
                folders.append(entry)
            else:
                yield entry


def _entries(folder: Path) -> list[Path]:
    """Return what is in a folder, but hidden names, as far as that is looked at."""
    found: list[Path] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.name not in SKIPPED:
                    found.append(folder / entry.name)
                if len(found) == MAX_LOOKED_AT:
                    break
    except OSError:
        return []
    return found
