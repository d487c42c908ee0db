"""Checkpoints of the variables as a caller sees them: what became of them at a crash, and a moment to go back to."""

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
    """Return what kept a checkpoint from being taken, in brackets after a space; '' if it is not known."""
    return f" ({_HINDRANCES[hindrance]})" if hindrance else ""


@dataclass(frozen=True)
class Variables:
    """The fate of the variables when the kernel ended.

    Attributes:
        kept: a checkpoint of them went on as the kernel.
        undone: how many calls that checkpoint does not know of; 1 if it was taken just before the code that ended the
            kernel, 0 after it.
        hindrance: what kept a later checkpoint from being taken, or any; '' if it is not known.
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
    """A moment of a session to go back to: the id of its container, and the number of the run before it."""

    sandbox: str
    run: int


# The state of a sandbox outside of it: an archive, and a report on each variable.


MAX_TOLD = 20  # names of each kind in the text


@dataclass(frozen=True)
class MissingVariable:
    """A variable that was not saved, or could not be loaded, and the reason as a clause."""

    name: str
    reason: str


@dataclass(frozen=True)
class VariablesReport:
    """The fate of the variables when they were saved or loaded. As text it says so in sentences.

    Attributes:
        kept: the names of those that were saved, or are there again.
        missing: the others. After loading, those that were missing when they were saved are among them.
        problem: the reason for which nothing is known of the rest, as a clause; '' as a rule.
    """

    kept: tuple[str, ...] = ()
    missing: tuple[MissingVariable, ...] = ()
    problem: str = ""

    @property
    def is_complete(self) -> bool:
        """True if no variable is missing."""
        return not self.missing and not self.problem

    def __str__(self) -> str:
        kept = ", ".join(self.kept[:MAX_TOLD]) + _more(len(self.kept))
        lines = [f"Variables kept: {kept or 'none'}."]
        if self.missing:
            lines.append("Variables missing:")
            lines += [f"  {each.name}: {each.reason}" for each in self.missing[:MAX_TOLD]]
            lines += [f"  {more.removeprefix(', ')}" for more in [_more(len(self.missing))] if more]
        if self.problem:
            lines.append(f"Nothing is known of the rest: {self.problem}.")
        return "\n".join(lines)


@dataclass(frozen=True)
class SavedState:
    """A sandbox as `save(variables=True)` returns it: `load` brings it back, here or on another machine.

    Attributes:
        tar: the files of work_dir, and the variables as members that only a sandbox reads.
        variables: what was saved, and what not.
    """

    tar: bytes = field(repr=False)
    variables: VariablesReport

    def __str__(self) -> str:
        return f"{len(self.tar):,} bytes. {self.variables}"


def _more(total: int) -> str:
    return f", and {total - MAX_TOLD:,} more" if total > MAX_TOLD else ""
