"""Names of other libraries for the options and methods of a sandbox, each with ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

OPTIONS = {
    "allow_internet_access": "network",
    "allowed_domains": "network={'allow': [...]}",
    "cwd": "work_dir",
    "env_vars": "env",
    "environment": "env",
    "envs": "env",
    "functions": "hostcalls",
    "internet_access": "network",
    "libraries": "packages",
    "mem_limit": "memory",
    "memory_limit": "memory",
    "memory_mb": "memory, such as '512m'",
    "requirements": "packages",
    "template": "flavour, or image",
    "timeout_ms": "timeout, in seconds",
    "tools": "hostcalls",
    "workdir": "work_dir",
    "working_dir": "work_dir",
}
"""Options of other libraries, each with the words for ours."""

SANDBOX = {
    "commands": "run_command() and start_command()",
    "create": "the constructor: Sandbox(...) or AsyncSandbox(...), in a `with` block",
    "exec": "run_code() for Python, run_command() for programs",
    "execute": "run_code() for Python, run_command() for programs",
    "files": "read_file(), write_file() and list_files()",
    "filesystem": "read_file(), write_file() and list_files()",
    "kill": "close()",
    "pause": "save(), and load() in another sandbox; or the option idle_stop",
    "process": "run_command() and start_command()",
    "resume": "load(), of what save() wrote",
    "run": "run_code() for Python, run_command() for programs",
    "shutdown": "close()",
    "stop": "close()",
    "terminate": "close()",
    "upload": "write_file()",
    "download": "read_file()",
}
"""Methods and attributes of other libraries' sandboxes, each with the words for ours."""

EXECUTION = {
    "exit_code": "ok and error",
    "logs": "stdout and stderr",
    "results": "outputs, and result for the last value",
    "text": "result for the last value, and stdout",
}
"""Attributes of other libraries' results, each with the words for ours."""


def refuse(what: str, name: str, known: Mapping[str, str]) -> NoReturn:
    """Raise the AttributeError of a name that does not exist, with the name that is meant if it is known."""
    hint = f"; use {known[name]}" if name in known else ""
    raise AttributeError(f"{what} has no attribute {name!r}{hint}", name=name)
