"""Next steps for the error of a script, in the words of the command line.

The sandbox knows what its image has and which files are there, so its kernel repeats the failed step and adds the
sentence that it adds to errors of cells; here the options of Python in it become those of the command line.
"""

from __future__ import annotations

import re
from pathlib import Path

from agent_tools.errors import AgentToolsError
from agent_tools.results.outputs import Error
from agent_tools.sandbox.sandbox import Sandbox

SECONDS = 10.0
MAX_TEXT = 2_000  # characters at the end of a script's stderr
_MODULE = re.compile(r"^ModuleNotFoundError: No module named '([\w.]{1,100})'", re.MULTILINE)
_FILE = re.compile(r"^FileNotFoundError: \[Errno 2\] No such file or directory: '([^'\n]{1,300})'$", re.MULTILINE)
_UNREACHED = re.compile(r"Temporary failure in name resolution|Name or service not known|Network is unreachable")
_MAGIC = re.compile(r"^    [!%].*\n *\^+\nSyntaxError: invalid syntax$", re.MULTILINE)
_PIP = re.compile(r"^(\S{1,200} cannot be installed here: .{1,500})$", re.MULTILINE)
_HOST = re.compile(r"host='([A-Za-z0-9.-]{1,253})'")
_WORDS = (
    (
        re.compile(r"is not installed and cannot be installed from here: use what `%pip list` shows\."),
        "is not in the image.",
    ),
    (re.compile(r", and trying again changes nothing: use the files that are there\."), "."),
    (re.compile(r"the option packages=\['([\w.-]+)'\] adds it"), r"--package \1 adds it"),
    (re.compile(r"the image's flavour `(\w+)` has it"), r"--flavour \1 has it"),
    (re.compile(r"network=\{'allow': \['([\w.:-]+)'\]\}"), r"--allow \1"),
    (re.compile(r"the option debian_packages adds"), "--debian-package NAME adds"),
    (
        re.compile(
            r"ask the operator of this sandbox to add it with the option `packages`, or to allow the package index"
        ),
        "start it again with --package NAME, or",
    ),
    (re.compile(r"For the operator of this sandbox: (\S)"), lambda found: found[1].upper()),
    (
        re.compile(r"Its operator can attach files, or allow hosts with (--allow \S*[^.\s])"),
        r"\1 lets the code reach it",
    ),
)


def for_shell(text: str) -> str:
    """Return a sentence for the operator of a sandbox in the words of the command line."""
    for words, option in _WORDS:
        text = words.sub(option, text)
    return text


def next_step(sandbox: Sandbox, stderr: str) -> str:
    """Return what to do about the error at the end of a script's stderr; '' if there is nothing to say."""
    text = stderr[-MAX_TEXT:]
    if found := _MODULE.search(text):
        return for_shell(_advice(sandbox, f"import {found[1]}"))
    if found := _FILE.search(text):
        name = found[1]
        if Path(name).is_file():
            return f"{name!r} is on this machine, not in the sandbox: -f {name} copies it there, beside the script."
        return _advice(sandbox, f"open({name!r})")
    if found := _PIP.search(text):
        return for_shell(found[1])
    if _MAGIC.search(text):
        return "`run` is Python, without ! and %: `agent-tools repl` has them, and --package NAME adds a package."
    if _UNREACHED.search(text):
        host = _HOST.search(text)
        return for_shell(_advice(sandbox, f"__import__('socket').getaddrinfo({host[1] if host else 'HOST'!r}, 443)"))
    return ""


def _advice(sandbox: Sandbox, code: str) -> str:
    """Return the sentence that the kernel adds to the error of this code."""
    try:
        error = sandbox.run_code(code, timeout=SECONDS).error
    except AgentToolsError:
        return ""
    if not isinstance(error, Error):
        return ""
    *_, last = error.traceback.rstrip().split("\n\n")
    return "" if last.startswith(f"{error.name}:") else last
