"""Answers an installer where packages cannot be changed: lists installed packages, and says how to add others."""

from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, distributions, version

from packaging.requirements import InvalidRequirement, Requirement

MAX_FILE = 100_000  # characters of a file of requirements


def tell_of_packages(words: list[str], tell: Callable[[str], None]) -> bool:
    """Answer an installer's arguments from the installed packages; return False if something was refused."""
    after = words[words.index("install") + 1 :] if "install" in words else []
    if wanted := list(_wanted(after)):
        return _tell_of_wanted(wanted, tell)
    if {"list", "freeze"} & set(words):
        print("\n".join(sorted({f"{each.name}=={each.version}" for each in distributions()}, key=str.lower)))
        return True
    tell("Packages cannot be changed here; `%pip list` shows those that are installed.")
    return False


def _wanted(words: list[str]) -> Iterator[str]:
    """Yield the requirements among an installer's arguments, and those in the files that these name."""
    rest = iter(words)
    for word in rest:
        option, _, path = word.partition("=")
        if option == "--requirement" or word.startswith("-r"):
            yield from _lines((path if option == "--requirement" else word[2:].removeprefix("=")) or next(rest, ""))
        elif not word.startswith("-"):
            yield word


def _lines(path: str) -> list[str]:
    """Return the requirements of a file, one a line; its path itself if it cannot be read.

    The format: https://pip.pypa.io/en/stable/reference/requirements-file-format/. Options in it are passed over,
    hashes of a requirement, too.
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read(MAX_FILE).replace("\\\n", " ").splitlines()
    except (OSError, ValueError):
        return [path]
    lines = [line.partition(" #")[0].partition(" --")[0].strip() for line in lines]
    return [line for line in lines if line and not line.startswith(("#", "-"))]


def _tell_of_wanted(wanted: list[str], tell: Callable[[str], None]) -> bool:
    found = dict(_installed(wanted))
    for word, have in found.items():
        print(f"Requirement already satisfied: {word} ({have})")
    if missing := ", ".join(word for word in wanted if word not in found):
        tell(
            f"{missing} cannot be installed here: use what `%pip list` shows, or ask the operator of this sandbox to "
            "add it with the option `packages`, or to allow the package index with network={'allow': ['pypi']}."
        )
    return not missing


def _installed(wanted: list[str]) -> Iterator[tuple[str, str]]:
    """Return the requirements that the image meets, with its versions."""
    for word in wanted:
        try:
            requirement = Requirement(word)
            have = version(requirement.name)
        except (InvalidRequirement, PackageNotFoundError):
            continue
        if requirement.specifier.contains(have, prereleases=True):
            yield word, have
