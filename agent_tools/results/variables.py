"""The state of variables after a crash, restore points and saved variables, as values for callers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Hindrance = Literal["", "threads", "children", "memory", "time"]
_HINDRANCES: dict[Hindrance, str] = {
    "": "",
    "threads": "no checkpoint is taken while threads of the code are running",
    "children": "no checkpoint is taken while processes that the code has started are running",
    "memory": "there was no room for a checkpoint",
    "time": "the calls came too fast for a checkpoint after each",
}


def because(hindrance: Hindrance) -> str:
    """Return the reason why no checkpoint was taken, in brackets after a space; '' if it is not known."""
    return f" ({_HINDRANCES[hindrance]})" if hindrance else ""


@dataclass(frozen=True)
class Variables:
    """The state of the variables after the kernel ended.

    Attributes:
        kept: True if a checkpoint of them continues as the kernel.
        undone: the number of calls after that checkpoint, which are undone; 1 if it was taken just before the code that
            ended the kernel, 0 after it.
        hindrance: why there is no later checkpoint, or none at all; '' if it is not known.
    """

    kept: bool = False
    undone: int = 0
    hindrance: Hindrance = ""

    @property
    def text(self) -> str:
        """A clause for people and models, after the code that ended the kernel."""
        if not self.kept:
            return f"variables are lost{self._why}"
        if self.undone < 2:
            return f"variables are as {'they were before this code' if self.undone else 'this code left them'}"
        return f"variables are as they were before the last {self.undone} calls{self._why}"

    @property
    def text_later(self) -> str:
        """A clause for people and models, before the next code."""
        if not self.kept:
            return f"earlier variables are lost{self._why}"
        if not self.undone:
            return "variables are kept"
        calls = "call" if self.undone == 1 else f"{self.undone} calls"
        return f"variables are as they were before the last {calls}{self._why}"

    @property
    def _why(self) -> str:
        return because(self.hindrance)


LOST = Variables()


@dataclass(frozen=True)
class RestorePoint:
    """A point in a session to go back to: the id of its container, and the number of the run before it."""

    sandbox: str
    run: int


MAX_NAMES_LISTED = 20  # names listed in the text, of each kind


@dataclass(frozen=True)
class MissingVariable:
    """A variable that was not saved or not loaded, and the reason as a clause."""

    name: str
    reason: str


@dataclass(frozen=True)
class VariablesReport:
    """Report on variables that were saved or loaded; `str()` returns it as sentences.

    Attributes:
        kept: the names of variables that were saved or loaded.
        missing: the other variables; after loading, with those that were not saved.
        problem: why the report ends early, as a clause; '' normally.
    """

    kept: tuple[str, ...] = ()
    missing: tuple[MissingVariable, ...] = ()
    problem: str = ""

    @property
    def is_complete(self) -> bool:
        """True if no variable is missing."""
        return not self.missing and not self.problem

    def __str__(self) -> str:
        kept = ", ".join(self.kept[:MAX_NAMES_LISTED]) + _more(len(self.kept))
        lines = [f"Variables kept: {kept or 'none'}."]
        if self.missing:
            lines.append("Variables missing:")
            lines += [f"  {each.name}: {each.reason}" for each in self.missing[:MAX_NAMES_LISTED]]
            lines += [f"  {more.removeprefix(', ')}" for more in [_more(len(self.missing))] if more]
        if self.problem:
            lines.append(f"Nothing is known of the rest: {self.problem}.")
        return "\n".join(lines)


@dataclass(frozen=True)
class SavedState:
    """The result of `save(variables=True)`; `load` restores it, here or on another machine.

    Attributes:
        tar: the files of work_dir, and the variables as members that are read only in a sandbox.
        variables: the report on saved and missing variables.
    """

    tar: bytes = field(repr=False)
    variables: VariablesReport

    def __str__(self) -> str:
        return f"{len(self.tar):,} bytes. {self.variables}"


def _more(total: int) -> str:
    return f", and {total - MAX_NAMES_LISTED:,} more" if total > MAX_NAMES_LISTED else ""
