"""Adds a sentence with the next step to errors that do not have one."""

import codecs
import difflib
import errno
import os
import re
import shutil
import socket
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import TracebackType

from ..packages import PLACE
from .module_names import DISTRIBUTIONS

MAX_LISTED = 8  # names of files in a sentence
MAX_LOOKED_AT = 2_000  # names of files searched for a similar name
MAX_LINKS = 64  # exceptions that one came from, or holds
SKIPPED = frozenset((".git", "__pycache__", "node_modules"))
IN_FULL = (
    "altair cv2 docx duckdb geopandas html5lib imageio imageio_ffmpeg ipywidgets kaleido markdown nltk numexpr "
    "pdfplumber plotly polars pptx pypdf reportlab rich shapely skimage sqlalchemy tables vl_convert wordcloud xarray "
    "xlrd"
)
"""Modules that the image's flavour `full` has beyond `lean`."""
IN_AGENT = "pytest"
"""Modules that the flavour `agent` has beyond `lean`."""
PROGRAMS = {
    "agent": "curl file g++ gcc git jq less make patch rg tree unzip xz zip",
    "office": "libreoffice node npx pandoc pdfinfo pdftoppm pdftotext qpdf soffice tesseract",
}
"""Programs that a flavour has beyond `lean`."""
INSTALLERS = frozenset(("apk", "apt", "apt-get", "aptitude", "brew", "conda", "dnf", "mamba", "sudo", "yum"))
NO_PROGRAMS = (
    "Programs cannot be installed here: use what there is. For the operator of this sandbox: the option "
    "debian_packages adds Debian's packages."
)
NO_NLTK_DATA = (
    "NLTK's data is not in the image. For the operator of this sandbox: attach the folder nltk_data as files, or allow "
    "its host with network={'allow': ['raw.githubusercontent.com']}."
)
ENCODINGS = ("gb18030", "big5", "shift_jis", "euc_kr", "cp1252", "latin-1")
BEGINNINGS = {
    b"PK\x03\x04": "a ZIP archive, as .xlsx, .docx and .pptx are (pandas.read_excel, zipfile)",
    b"\xd0\xcf\x11\xe0": "an old Office file, such as .xls",
    b"\x1f\x8b": "gzip (compression='gzip')",
    b"%PDF": "a PDF",
    b"PAR1": "Parquet (pandas.read_parquet)",
    b"SQLite format 3": "a SQLite database (sqlite3)",
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
}
NOT_FOUND = 127  # a shell's status for a command whose program it cannot find
MAX_DECODED = 1 << 20  # bytes of a text whose encoding is sought
READ_LESS = "Use less memory at once: read only some columns (usecols), smaller types (dtype) or parts (chunksize)."
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_-]{0,252}")
_CONNECTING = ("getaddrinfo", "create_connection")  # functions of socket and of clients that name what they look for
_UNREACHABLE = frozenset((errno.ENETUNREACH, errno.EADDRNOTAVAIL))
NO_NETWORK = (
    "This sandbox has no network, and trying again changes nothing: use the files that are there. Its operator can "
    "attach files, or allow hosts with network={{'allow': ['{}']}}."
)
LISTED_ONLY = (
    "This sandbox reaches only listed hosts, through the proxy that HTTPS_PROXY names: a client that ignores "
    "HTTPS_PROXY reaches nothing (aiohttp: trust_env=True)."
)
AWAIT = "Use `await` here: cells may await at their top level."
NO_FFMPEG = (
    "There is no ffmpeg here, so save the animation as .gif (writer='pillow'); the image's flavour `full` has it."
)


def advice(exc: BaseException) -> str:
    """Return a sentence to add to an error; '' if its own message is enough."""
    try:
        return _of_network(exc) or _advice(exc)
    except Exception:  # noqa: BLE001  (whatever a class of the code's own raises)
        return ""


def _of_network(exc: BaseException) -> str:
    """Return a sentence for an error that the sandbox's network caused; '' for any other."""
    found = [each for each in _chain(exc) if _is_of_network(each)]
    wanted = next(filter(None, (_wanted(each.__traceback__) for each in found)), "HOST")
    if not found:
        return ""
    if os.path.isdir(PLACE):
        return LISTED_ONLY
    return NO_NETWORK.format(wanted) if [name for _, name in socket.if_nameindex()] == ["lo"] else ""


def _wanted(link: TracebackType | None) -> str:
    """Return the allowlist entry for the host that code sought, by the innermost frame that names it; '' if none."""
    entry = ""
    while link is not None:
        if link.tb_frame.f_code.co_name in _CONNECTING:
            entry = _entry(link.tb_frame.f_locals) or entry
        link = link.tb_next
    return entry


def _entry(given: Mapping[str, object]) -> str:
    host, port = given.get("host"), given.get("port")
    if type(host) is not str or not _HOST.fullmatch(host):
        return ""
    name = f"[{host}]" if ":" in host else host
    return f"{name}:{port}" if type(port) is int and port not in (0, 443) else name


def _is_of_network(exc: BaseException) -> bool:
    if isinstance(exc, socket.gaierror):
        return exc.errno in (socket.EAI_AGAIN, socket.EAI_NONAME)
    return isinstance(exc, OSError) and exc.errno in _UNREACHABLE


def _advice(exc: BaseException) -> str:
    text = str(exc)
    match exc:
        case ImportError():
            missing = next((each for each in _chain(exc) if isinstance(each, ModuleNotFoundError)), None)
            return of_module(missing.name or "") if missing else ""
        case FileNotFoundError() if exc.errno == errno.ENOENT and isinstance(exc.filename, (str, bytes)):
            name = os.fsdecode(exc.filename)
            return of_program(name) if _started_a_program(exc) else _of_file(name)
        case MemoryError():
            return READ_LESS
        case UnicodeDecodeError():
            return _of_encoding(exc.object[:MAX_DECODED])
        case LookupError() if "nltk.download(" in text:
            return NO_NLTK_DATA
        case RuntimeError() if "event loop is already running" in text or "running event loop" in text:
            return AWAIT
        case ValueError() if re.fullmatch(r"unknown file extension: \.(mp4|mov|avi|mkv|webm)", text):
            return "" if shutil.which("ffmpeg") else NO_FFMPEG
    return ""


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes, and those that a group holds, up to MAX_LINKS."""
    links: deque[BaseException | None] = deque([exc])
    for _ in range(MAX_LINKS):
        if not links:
            return
        if link := links.popleft():
            yield link
            links += [link.__cause__ or link.__context__, *getattr(link, "exceptions", ())[:MAX_LINKS]]


def of_module(name: str) -> str:
    """Return a sentence on how to get a missing module; '' if its package is installed."""
    module = name.partition(".")[0]
    if not module or find_spec(module) or module in sys.stdlib_module_names:
        return ""
    package = DISTRIBUTIONS.get(module)
    if not package:
        return _of_unknown(module)
    if os.path.isdir(PLACE):
        return f"{module} is not installed; where the package index is allowed, `%pip install {package}` installs it."
    flavours = [name for name, modules in (("full", IN_FULL), ("agent", IN_AGENT)) if module in modules.split()]
    has = f"the image's flavour `{flavours[0]}` has it" if flavours else f"the option packages=['{package}'] adds it"
    return (
        f"{module} is not installed and cannot be installed from here: use what `%pip list` shows. "
        f"For the operator of this sandbox: {has}."
    )


def _of_unknown(module: str) -> str:
    """Return a sentence on a module that no known package has: none is proposed, anybody may register it."""
    if near := [each for each in _files(Path()) if each.name == f"{module}.py"]:
        folder = str(near[0].parent)
        return f"{str(near[0])!r} is there: sys.path.insert(0, {folder!r}) lets code import it."
    known = {*sys.stdlib_module_names, *(each.name for each in iter_modules()), *DISTRIBUTIONS}
    close = difflib.get_close_matches(module, known, 1, 0.8)
    asked = f" Did you mean {close[0]}?" if close else ""
    return f"There is no module {module} here, and no package is known for it.{asked}"


def _of_encoding(data: bytes) -> str:
    """Return a sentence on what bytes are that are not text in the encoding that was asked for."""
    if kind := next((kind for magic, kind in BEGINNINGS.items() if data.startswith(magic)), ""):
        return f"This is no text: it begins like {kind}."
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "It begins like UTF-16: give encoding='utf-16'."
    fitting = [each for each in ENCODINGS if _decodes(data, each)]
    return f"Encodings that decode it: {', '.join(fitting)}. Give one, such as encoding={fitting[0]!r}."


def _decodes(data: bytes, encoding: str) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)().decode(data)  # its last character may be cut
    except UnicodeDecodeError:
        return False
    return True


def _started_a_program(exc: BaseException) -> bool:
    """Return whether an error was raised by the standard library as it started a program."""
    link = exc.__traceback__
    while link and link.tb_next:
        link = link.tb_next
    return bool(link and os.path.basename(link.tb_frame.f_code.co_filename) == "subprocess.py")


def of_command(words: list[str], status: int) -> str:
    """Return a sentence on a shell command that failed: its program is not there, or would install others."""
    name = next((word for word in words if word != "sudo" and "=" not in word), "")
    if name in INSTALLERS:
        return NO_PROGRAMS
    return of_program(name) if status == NOT_FOUND and name else ""


def of_program(name: str) -> str:
    """Return a sentence on how to get a program; '' if it is there."""
    if os.path.sep in name or shutil.which(name):
        return ""
    if name in INSTALLERS:
        return NO_PROGRAMS
    flavours = [flavour for flavour, names in PROGRAMS.items() if name in names.split()]
    has = (
        f"the image's flavour `{flavours[0]}` has it"
        if flavours
        else "the option debian_packages adds Debian's packages"
    )
    return f"There is no program {name} in this image. For the operator of this sandbox: {has}."


def _of_file(name: str) -> str:
    """Return a sentence on what exists instead of a file: similar names, else its neighbours."""
    path = Path(name)
    if path.exists():  # it exists by now
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
    """Yield files below a folder, in near folders first, up to MAX_LOOKED_AT entries."""
    folders, left = [folder], MAX_LOOKED_AT
    for each in folders:  # the list grows meanwhile
        for entry in _entries(each):
            left -= 1
            if left < 0:
                return
            if entry.is_dir() and not entry.is_symlink():
                folders.append(entry)
            else:
                yield entry


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a folder without hidden ones, up to MAX_LOOKED_AT."""
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
