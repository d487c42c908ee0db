"""What LibreChat is told of a run of Python in a kernel."""

from __future__ import annotations

import secrets

from agent_tools.results.execution import Died, Error, Execution, TimedOut
from agent_tools.sandbox.sandbox import Sandbox

TOO_LATE = "Time limit exceeded"


def printed(sandbox: Sandbox, done: Execution, shown: str = "", note: str = "") -> tuple[str, str]:
    """Return the stdout and stderr of Python that ran in a kernel. Figures that it showed become files."""
    for picture in done.pictures:
        kind = picture.mime.rpartition("/")[2].partition("+")[0]
        sandbox.write_file(f"figure-{secrets.token_hex(4)}.{kind}", picture.data)
    stdout = done.stdout + (f"{shown}\n" if shown else "")
    notes = "".join(f"{each}\n" for each in (note, *done.notes) if each)
    return stdout, done.stderr + (f"{done.error.text}\n" if done.error else "") + notes


def failure_of(done: Execution) -> str:
    """Return LibreChat's word for how code failed; '' if it did not."""
    match done.error:
        case None:
            return ""
        case TimedOut():
            return TOO_LATE
        case Died():
            return "Sandbox exited with code 137"
        case Error("SystemExit", value) if value.isdecimal():
            return f"Sandbox exited with code {value}"
    return "Sandbox exited with code 1"
