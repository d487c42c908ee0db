"""IPython's magics and shell commands without a person, a screen or an installer.

A magic that cannot work here prints one sentence that says so.
"""

import asyncio
import codecs
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial, wraps
from importlib.util import find_spec
from typing import Any, TextIO

from IPython.core.error import UsageError
from IPython.core.magics import ExecutionMagics

from ..packages import NO_INSTALLER
from . import next_steps
from .interrupts import shield
from .streams import OutputStream

# Magics that end the cell: the code after them could rely on their effect.
REFUSED = {
    "connect_info": "no other client can reach this kernel.",
    "qtconsole": "no other client can reach this kernel.",
    "edit": "there is no editor here; write a file with %%writefile and run it with %run.",
    "man": "there are no manual pages here; try the command's own --help.",
    "notebook": "no notebook is kept here; `%history -f file.py` writes the code so far.",
    "pastebin": "nothing can be published from here; %save writes code to a file.",
}
INSTALLERS = ("pip", "conda", "mamba", "micromamba", "uv")
NO_AUTOSAVE = "%autosave: there is no notebook to save here; files in the working directory are kept as they are."
NO_DEBUGGER = "There is no input for a debugger's prompt here: print the values of interest, or read the traceback."
NOT_RUN = "This is only shown and was not run: there is no next cell to put it into; %run and %rerun run code."
SHELL = "/bin/sh"  # of os.system, whatever $SHELL says
SCRIPTS_SECONDS = 1.0  # for the end of their tasks
SHELL_MARKS = frozenset("();<>|&")


def say(sentence: str) -> None:
    """Print a sentence on something not done, or done otherwise; the cell continues."""
    print(sentence, file=sys.stderr)


def register(shell: Any) -> None:
    """Replace magics that need a person, a screen or an index of packages."""
    for name, why in REFUSED.items():
        shell.register_magic_function(_refusal(name, why), "line", name)
    for name in INSTALLERS:
        shell.register_magic_function(_installer(name, shell.find_line_magic(name)), "line", name)
    shell.register_magic_function(_autosave, "line", "autosave")
    os.system = system
    shell.magics_manager.load_lazy = partial(_load, shell.magics_manager.load_lazy)
    shell.register_magic_function(_subshell, "line", "subshell")
    shell.register_magics(RunMagicsWithoutDebugger)
    shell.register_magic_function(_raising(shell, shell.find_line_magic("rerun")), "line", "rerun")


def _raising(shell: Any, stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return a magic whose error of the code that it runs, which the stock one shows only, is the cell's."""

    @wraps(stock)  # with its parser, and its help
    def run(*args: Any, **kwargs: Any) -> Any:
        return shell.run_raising(stock, *args, **kwargs)

    return run


def _load(stock: Callable[..., None], *args: Any) -> None:
    """Import a magic; an interrupt waits: IPython would take a magic that was half imported for a missing one."""
    with shield:
        stock(*args)


def end_scripts(shell: Any) -> None:
    """End the thread that `%%bash` and its kin have left, unless a script runs on: it would hinder checkpoints."""
    scripts = shell.magics_manager.registry.get("ScriptMagics")
    if getattr(scripts, "event_loop", None) and all(each.returncode is not None for each in scripts.bg_processes):
        asyncio.run_coroutine_threadsafe(_cancel_tasks(), scripts.event_loop).result(SCRIPTS_SECONDS)
        scripts._event_loop_finalizer()
        scripts.event_loop = None


async def _cancel_tasks() -> None:
    """Cancel the other tasks of the running loop: those of a script that was interrupted wait for its output."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
    for reader, _ in [key.data for key in selector.get_map().values()]:  # pipes that a script's own children hold
        pipe = getattr(getattr(reader, "_callback", None), "__self__", None)
        if isinstance(pipe, asyncio.ReadTransport):
            pipe.close()
    await asyncio.sleep(0)


def _refusal(name: str, why: str) -> Callable[..., None]:
    def refuse(line: str) -> None:
        raise UsageError(f"%{name}: {why}")

    refuse.__doc__ = f"Refused: {why}"
    return refuse


def _autosave(line: str) -> None:
    """Say that there is no notebook."""
    say(NO_AUTOSAVE)


def _subshell(line: str) -> None:
    """Say that there are no subshells, in the stock kernel's words."""
    print("Kernel does not support subshells")


class RunMagics(ExecutionMagics):
    """%run, %time, %prun and their like; the error of a file of %run, or of a %%capture, is the cell's.

    `%matplotlib` gives the stock class a runner that ends each file with an empty figure; this one it does not know.
    """

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        for kind, name in (("line", "run"), ("cell", "capture")):
            self.magics[kind][name] = _raising(shell, self.magics[kind][name])

    def _run_with_profiler(self, code: Any, opts: Any, namespace: Any) -> Any:
        if isinstance(code, str):
            self.shell.lazy_names.look_at(code)
        if "execfile" in namespace:  # of %run, which would only show the file's error
            namespace["execfile"] = partial(self.shell.safe_execfile, raise_exceptions=True)
        return super()._run_with_profiler(code, opts, namespace)


class RunMagicsWithoutDebugger(RunMagics):
    """The same where nobody can type at a debugger's prompt."""

    def pdb(self, parameter_s: str = "") -> None:
        """Leave the debugger off."""
        if parameter_s.strip().lower() not in ("off", "0"):
            say(NO_DEBUGGER)

    def _debug_post_mortem(self) -> None:
        raise UsageError(NO_DEBUGGER)

    def _run_with_debugger(self, *args: Any, **kwargs: Any) -> None:
        raise UsageError(NO_DEBUGGER)


def _installer(name: str, stock: Callable[[str], None]) -> Callable[[str], None]:
    def install(line: str) -> None:
        if _has(name):  # an image of the user's own
            stock(line)
        else:
            _tell_of_packages(_words(line))

    install.__doc__ = "Packages are chosen when the sandbox is made; `list` shows them."
    return install


def _has(installer: str) -> bool:
    if installer == "pip":
        found = find_spec(installer)
        return bool(found and not str(found.origin).startswith(NO_INSTALLER))
    return bool(shutil.which(installer) or find_spec(installer))


def handles(command: str) -> bool:
    """Answer a shell command that is an installer's and nothing else, if there is no such program."""
    words = _words(command)
    if len(words) > 3 and "python" in words[0] and words[1] == "-m":
        words = words[2:]
    if not words or (name := words[0].rstrip("3")) not in INSTALLERS or _has(name):
        return False
    _tell_of_packages(words[1:])
    return True


def _tell_of_packages(words: list[str]) -> None:
    from .installed import tell_of_packages  # not at the start, which has to be quick

    tell_of_packages(words, say)


def _words(command: str) -> list[str]:
    """Return the words of one simple shell command; [] for a pipeline, a redirection or a list.

    `numpy>1` is a word here, although a shell would create a file: that is never meant.
    """
    lexer = shlex.shlex(command, posix=True, punctuation_chars="();|&")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:
        return []
    if "\n" in command or any(set(word) <= SHELL_MARKS or re.match(">[^=]", word) for word in words):
        return []
    return words


LOOK_SECONDS = 0.05  # between two looks at a command whose output is taken elsewhere
READ_BYTES = 64 * 1024  # what a pipe holds: one reading after the end finds all that was written before it
SIGNALLED = 128  # a shell's status for a command that a signal ended, less the signal's number
CD_ALONE = "!cd changes the directory of that one command, which has ended; %cd changes the kernel's."


def run_shell_command(shell: Any, command: str) -> None:
    """Run a shell command as `InteractiveShell.system` does: variables are expanded, `_exit_code` is set.

    An interrupt ends the cell, and not this command alone.
    """
    command = shell.var_expand(command, depth=2)
    if handles(command):
        return
    if _words(command)[:1] == ["cd"]:
        say(CD_ALONE)
    shell.user_ns["_exit_code"] = -signal.SIGINT  # unless it ends by itself
    status = _status(command)
    shell.user_ns["_exit_code"] = SIGNALLED - status if status > SIGNALLED else status
    if status and (told := next_steps.of_command(_words(command), status)):
        say(told)
    if shell.system_raise_on_error and status:
        raise subprocess.CalledProcessError(status, command)


def _status(command: str) -> int:
    out, err = _elsewhere(sys.stdout), _elsewhere(sys.stderr)
    with subprocess.Popen(
        command,
        shell=True,
        executable=os.environ.get("SHELL"),
        stdout=subprocess.PIPE if out else None,
        stderr=subprocess.PIPE if err else None,
    ) as process:
        try:
            _pass_on(process, [(process.stdout, out), (process.stderr, err)])
            return process.wait()
        except BaseException:
            process.kill()
            raise


def system(command: Any) -> int:
    """Stand in for `os.system`, in which no interrupt would reach this process; return the command's wait status."""
    sys.audit("os.system", command)
    status = subprocess.call(command, shell=True, executable=SHELL, close_fds=False)
    return -status if status < 0 else status << 8


def _elsewhere(stream: Any) -> TextIO | None:
    return None if stream is None or isinstance(stream, OutputStream) else stream


def _pass_on(process: subprocess.Popen[bytes], ways: list[tuple[Any, TextIO | None]]) -> None:
    """Write the command's output to its targets until it has ended, without waiting for its children."""
    with selectors.DefaultSelector() as selector:
        for pipe, target in ways:
            if target:
                decoder = codecs.getincrementaldecoder("utf-8")("replace")
                selector.register(pipe, selectors.EVENT_READ, (decoder, target))
        while selector.get_map():
            has_ended = process.poll() is not None
            for key, _ in selector.select(0 if has_ended else LOOK_SECONDS):
                data = os.read(key.fd, READ_BYTES)
                decoder, target = key.data
                target.write(decoder.decode(data, final=not data))
                if not data:
                    selector.unregister(key.fileobj)
            if has_ended:
                return
