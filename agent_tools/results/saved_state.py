"""The state of a sandbox outside of it: an archive, and what became of each variable."""

from __future__ import annotations

from dataclasses import dataclass, field

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
