"""Names of the user and the group that the sandbox runs as, for any ids.

The image's /etc/passwd and /etc/group are links to files below HOME, which is writable. PID 1 writes these files
again, with a line for its ids. Nothing in the sandbox gives rights to a name.
"""

import contextlib
import os
import pwd

NAME = "sandbox"
BASE = "/usr/share/agent_tools"  # the image's own tables
SHELL = "/bin/bash"  # of the user, where the image has it
TABLES = ("passwd", "group")


def name_login() -> None:
    """Set the audit identity of this process and all that follow it: once it is set, code cannot choose another."""
    with contextlib.suppress(OSError), open("/proc/self/loginuid", "w") as file:  # none, or the engine's is inherited
        file.write(str(os.getuid()))


def write_names(etc: str = "/etc", base: str = BASE) -> None:
    """Write the tables to the targets of the image's links, and set USER, LOGNAME and SHELL.

    Tables that are not links stay as they are.
    """
    for table in TABLES:
        with contextlib.suppress(OSError):
            _write_table(table, os.readlink(f"{etc}/{table}"), base)
    with contextlib.suppress(KeyError):
        name = pwd.getpwuid(os.getuid()).pw_name
        os.environ.setdefault("USER", name)
        os.environ.setdefault("LOGNAME", name)
    if os.path.exists(SHELL):
        os.environ.setdefault("SHELL", SHELL)  # for `!` in cells; IPython's default is sh


def _write_table(table: str, target: str, base: str) -> None:
    with open(f"{base}/{table}", encoding="utf-8") as file:
        lines = file.read().splitlines()
    number = os.getuid() if table == "passwd" else os.getgid()
    if not any(line.split(":")[2:3] == [str(number)] for line in lines):
        lines.append(_line(table))
    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    with open(target, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def _line(table: str) -> str:
    """Return our own line: passwd(5), group(5)."""
    if table == "group":
        return f"{NAME}:x:{os.getgid()}:"
    home = os.environ.get("HOME", "/")
    return f"{NAME}:x:{os.getuid()}:{os.getgid()}:{NAME}:{home}:{SHELL}"
