"""Answers an installer where packages cannot be changed: lists installed packages, and says how to add others."""

from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, distributions, version

from packaging.requirements import InvalidRequirement, Requirement


def tell_of_packages(words: list[str], tell: Callable[[str], None]) -> bool:
    """Answer an installer's arguments from the installed packages; return False if something was refused."""
    after = words[words.index("install") + 1 :] if "install" in words else []
    if wanted := [word for word in after if not word.startswith("-")]:
        return _tell_of_wanted(wanted, tell)
    if {"list", "freeze"} & set(words):
        print("\n".join(sorted({f"{each.name}=={each.version}" for each in distributions()}, key=str.lower)))
        return True
    tell("Packages cannot be changed here; `%pip list` shows those that are installed.")
    return False


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
