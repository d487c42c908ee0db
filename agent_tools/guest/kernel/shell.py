"""IPython's shell for sandboxes: well-known names, tracebacks of user code only, no questions to a person."""

import asyncio
import contextlib
import inspect
import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core import page
from IPython.core.error import StdinNotImplementedError
from IPython.core.events import EventManager, available_events
from IPython.core.tbtools import _safe_string
from IPython.core.ultratb import AutoFormattedTB, FrameInfo
from IPython.utils.syspathcontext import prepended_to_syspath
from stack_data.core import RepeatedFrames

from . import display, history, interrupts, libraries, magics, next_steps, plain_forms
from .cell_processes import cell_processes
from .cells import CellShell
from .countdown import Countdown
from .finish import end_fork
from .interrupts import INTERRUPTIONS
from .lazy_names import NAMES, LazyNames
from .libraries import GUEST

MANY_CALLS = 40  # in a traceback that is shown as a whole, however they repeat themselves
SHOWN_CALLS = 5  # at either end of one that is not
MAX_EARLIER = 300  # characters of an earlier exception's message


def prepare_shell(shell: Any) -> None:
    """Set up a fresh shell with this module's features."""
    magics.register(shell)
    _interrupt_scripts(shell)
    display.show_as_png(shell.display_formatter)
    libraries.adapt(shell)
    plain_forms.show_as_text(shell.display_formatter)
    shell.InteractiveTB = UserTraceback(mode="Context", theme_name="nocolor", tb_offset=1)
    shell.set_custom_exc((KeyboardInterrupt, asyncio.CancelledError, BaseExceptionGroup), _format_plainly)
    interrupts.raise_unraisable()
    interrupts.shield_forks()
    interrupts.let_be_nudged()
    countdown = Countdown(shell)
    shell.events.register("pre_execute", countdown.start)
    shell.events.register("post_execute", countdown.cancel)
    shell.events.register("post_execute", partial(magics.end_scripts, shell))
    history.recall_history(shell.history_manager)
    shell.history_manager.outputs = shell.history_manager.exceptions = Unkept()
    for text in ("To exit: use", "Unknown failure executing"):  # the error itself is shown
        warnings.filterwarnings("ignore", message=text)


def _interrupt_scripts(shell: Any) -> None:
    """Report an interrupt of `%%bash` and the like as an interrupt, and not as the exit status of the script."""
    scripts = shell.magics_manager.registry["ScriptMagics"]
    run = scripts.shebang

    @wraps(run)  # with its parser
    def shebang(line: str, cell: str) -> Any:
        with interrupts.ending_the_cell():
            return run(line, cell)

    scripts.shebang = shebang
    shell.register_magic_function(shebang, "cell", "script")


class Leave:
    """Stands in for `exit` and `quit`: a call ends the cell, and keeps the kernel."""

    def __call__(self, code: object = 0) -> None:
        """End the cell."""
        raise SystemExit(code)

    def __repr__(self) -> str:
        return "exit() ends the code here; variables stay."


class CellEvents(EventManager):
    """IPython's events. Interrupts reach the callbacks at the end of a cell, too: one draws the figures."""

    def trigger(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Call the callbacks of an event; of an error or an interrupt of one, a text is shown."""
        if not event.startswith("post_"):
            super().trigger(event, *args, **kwargs)
            return
        try:
            with interrupts.reaching_end():
                super().trigger(event, *args, **kwargs)
        except KeyboardInterrupt:  # between two of them
            self.shell.showtraceback()


class Unkept(dict[int, Any]):
    """A dict that stores nothing. IPython would keep all outputs of cells in memory, for writing notebooks."""

    def __missing__(self, key: int) -> list[Any]:
        return []

    def __setitem__(self, key: int, value: Any) -> None:
        """Drop the item."""


class UserTraceback(AutoFormattedTB):
    """IPython's traceback without the frames of installed libraries.

    Of a recursion it has the beginning and the end. An earlier exception that was raised and handled inside a library
    is one line below the later one, or none if the later one quotes it.
    """

    def get_records(self, etb: Any, context: int, tb_offset: int) -> Any:
        """Return the frames of the user's own code."""
        begun, left_out, ended = without_repetition(etb)
        records = self._records(begun, context, tb_offset)
        if left_out:
            repeated = RepeatedFrames([*left_out], [(each.tb_frame.f_code, each.tb_lineno) for each in left_out])
            records += [FrameInfo._from_stack_data_FrameInfo(repeated), *self._records(ended, context, tb_offset)]
        return [each for each in records if each.code is None or not _is_library(str(each.filename))]

    def _records(self, etb: Any, context: int, tb_offset: int) -> list[Any]:
        """Return IPython's frames, each at the line of the exception: IPython shows where a cell's frame is now."""
        records = list(super().get_records(etb, context, tb_offset))
        lines: dict[int, list[int]] = {}
        for link in _links(etb):
            lines.setdefault(id(link.tb_frame), []).append(link.tb_lineno)
        for each in records:
            if each._sd is None:
                each.lineno = lines[id(each.frame)].pop(0)
        return records

    def get_parts_of_chained_exception(self, evalue: BaseException | None) -> Any:
        """Return the next exception of a chain that has frames of the user's own code."""
        *_, (last, follows) = [(None, False), *self._chain(evalue)]
        return (type(last), last, last.__traceback__) if last is not None and follows else None

    def format_exception(self, etype: Any, evalue: Any) -> list[str]:
        """Return the message, and those of earlier exceptions that have no frames of the user's own code."""
        lines: list[str] = super().format_exception(etype, evalue)
        for link, follows in self._chain(evalue):
            message = _safe_string(link, "message").partition("\n")[0][:MAX_EARLIER]
            if not follows and not any((message or type(link).__name__) in line for line in lines):
                lines.append(f"(after {type(link).__name__}{message and ': '}{message})")
        return lines

    def _chain(self, evalue: BaseException | None) -> Iterator[tuple[BaseException, bool]]:
        """Yield what an exception came of, up to one with frames of the user's own code, and whether each has them."""
        link = evalue
        for _ in range(next_steps.MAX_LINKS):
            parts = super().get_parts_of_chained_exception(link)
            if parts is None or parts[1] is evalue:
                return
            link = parts[1]
            has_frames = any(not _is_library(each.tb_frame.f_code.co_filename) for each in _links(parts[2]))
            yield link, has_frames
            if has_frames:
                return


def without_repetition(whole: TracebackType) -> tuple[TracebackType, list[TracebackType], TracebackType | None]:
    """Return the beginning of a traceback, what is left out of it, and its end, if most of its many calls are alike."""
    links = list(_links(whole))
    calls = {(each.tb_frame.f_code, each.tb_lineno) for each in links}
    if len(links) <= MANY_CALLS or len(calls) > len(links) // 2:
        return whole, [], None
    begun = None
    for link in reversed(links[:SHOWN_CALLS]):
        begun = TracebackType(begun, link.tb_frame, link.tb_lasti, link.tb_lineno)
    assert begun
    return begun, links[SHOWN_CALLS:-SHOWN_CALLS], links[-SHOWN_CALLS]


def _links(link: TracebackType | None) -> Iterator[TracebackType]:
    while link is not None:
        yield link
        link = link.tb_next


def _is_raised_by_user(error: BaseException) -> bool:
    *_, last = [None, *_links(error.__traceback__)]
    return last is not None and not _is_library(last.tb_frame.f_code.co_filename)


def _is_library(filename: str) -> bool:
    """Return whether a frame's file is neither a cell, nor below work_dir or another place the code may write."""
    if filename.startswith("<frozen") or not filename.startswith(("/", "<")):  # relative: Cython's .pyx files
        return True
    return filename.startswith((sys.prefix, sys.base_prefix, "/usr/", GUEST))


def is_users(frame: FrameType | None) -> bool:
    """Return whether a frame is user code, or was called by user code."""
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None


def _interrupt_before(error: BaseException) -> KeyboardInterrupt | None:
    """Return the interrupt of the code after which a library's cleanup raised an error."""
    link: BaseException | None = error
    for _ in range(next_steps.MAX_LINKS if interrupts.raised() else 0):
        if isinstance(link, KeyboardInterrupt):
            return link
        if link is None or _is_raised_by_user(link):
            return None
        link = link.__context__
    return None


def _format_plainly(shell: Any, etype: Any, value: Any, tb: Any, tb_offset: int | None = None) -> list[str]:
    """Format with the standard library: exception groups, which IPython does not know, and interruptions.

    An interruption must be reported within milliseconds; the first use of IPython's formatter takes longer.
    """
    shown = traceback.TracebackException(etype, value, tb, lookup_lines=False)
    for each in _earlier(shown):
        each.stack = traceback.StackSummary.from_list([one for one in each.stack if not _is_library(one.filename)])
    cells = {file: f"Cell In[{number}]" for file, number in shell.compile._filename_map.items()}
    text = re.sub(r'File "([^"]+)"', lambda m: cells.get(m[1], m[0]), "".join(shown.format()))
    lines = text.rstrip("\n").split("\n")
    shell._showtraceback(etype, value, lines)
    return lines


def _earlier(shown: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """Yield an exception and those that it came of, or holds."""
    found = [shown]
    for each in found:
        yield each
        found += filter(None, (each.__cause__, each.__context__, *(getattr(each, "exceptions", None) or ())))


class SandboxShell(CellShell):
    """IPython's shell without a person: text that it would ask, page, open or put into a next cell is printed.

    `exit()` ends the cell, and `!command` writes to the streams without a pseudo-terminal. `serve_notebook` is for
    clients with a person.
    """

    has_person = False
    display_pub: Any
    lazy_names: LazyNames
    is_held: Callable[[], bool] = staticmethod(lambda: False)
    """Tells whether the run's clock stands still."""
    _failure: BaseException | None = None  # of the magic that `run_raising` runs

    def transform_cell(self, raw_cell: str) -> str:
        """Transform a cell's magics, and provide the well-known names that it mentions."""
        transformed = super().transform_cell(raw_cell)
        self.lazy_names.look_at(transformed)
        return transformed

    @contextlib.contextmanager
    def _tee(self, channel: str) -> Iterator[None]:
        """Copy nothing of what is printed."""
        yield

    async def run_cell_async(self, *args: Any, **kwargs: Any) -> Any:
        """Run a cell; what went wrong in displaying an earlier one is forgotten, as in one that does not await."""
        self._last_traceback, self._last_traceback_during_displayhook = None, False
        is_outermost = interrupts.is_main_thread() and not self.depth
        if is_outermost:
            cell_processes.begin()
        streams, publisher = (sys.stdout, sys.stderr), self.display_pub
        result = await super().run_cell_async(*args, **kwargs)
        if self.kernel and self.kernel.session.is_fork:  # a child that the code forked, at the end of its program
            end_fork(0)
        if is_outermost:
            cell_processes.end()
            if interrupts.raised():  # perhaps between a change of the streams and the block that undoes it
                sys.stdout, sys.stderr = streams
            if not hasattr(self.display_pub, "set_parent"):  # which each request calls
                self.display_pub = publisher
        return result

    run_cell_async.__signature__ = inspect.signature(run_cell_async)  # type: ignore[attr-defined]  # asked for by each cell

    def run_cell(self, *args: Any, **kwargs: Any) -> Any:
        """Run a cell; within another one, raise an interrupt, and note an error for `run_raising`."""
        if not self.depth:
            return super().run_cell(*args, **kwargs)
        before = interrupts.raised()
        with interrupts.ending_the_cell():
            # IPython's own work is not left half done, and of callbacks of events it shows the errors only.
            result = interrupts.shielded(super().run_cell)(*args, **kwargs)
            error = result.error_before_exec or result.error_in_exec
            if isinstance(error, INTERRUPTIONS) and interrupts.raised() > before:
                raise error
            if error and _goes_to(sys._getframe(1)) is _RAISING:
                self._failure = error
            return result

    def safe_execfile_ipy(self, fname: str, *args: Any, **kwargs: Any) -> None:
        """Run a file of cells; a notebook is read without nbformat, which may not be there."""
        path = Path(fname).expanduser()
        if path.suffix != ".ipynb":
            super().safe_execfile_ipy(fname, *args, **kwargs)
            return
        with prepended_to_syspath(str(path.resolve().parent)):
            for cell in json.loads(path.read_text("utf-8"))["cells"]:
                code = "".join(cell["source"]) if cell["cell_type"] == "code" else ""
                if not self.run_cell(code, silent=True).success:
                    break

    def run_raising(self, magic: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a magic that runs a file or cells; raise their error, which IPython shows only, once it has returned."""
        outer, self._failure = self._failure, None
        try:
            value, failure = magic(*args, **kwargs), self._failure
        finally:
            self._failure = outer
        if failure:
            raise failure
        return value

    def getoutput(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of a shell command, as in `x = !command`; an interrupt ends the cell."""
        with interrupts.ending_the_cell():
            return super().getoutput(*args, **kwargs)

    async def run_code(self, *args: Any, **kwargs: Any) -> Any:
        """Run one compiled piece of a cell, which interrupts now reach."""
        with interrupts.reaching_code(is_users):
            return await super().run_code(*args, **kwargs)

    def serve_notebook(self, *, is_plain: bool = False) -> None:
        """Serve a person's notebook or console from now on, with questions, paging, next cells and exit.

        One that shows plain pictures alone gets no others of figures.
        """
        self.has_person = True
        if not is_plain:
            display.show_as_asked(self.display_formatter)
        self.set_hook("show_in_pager", page.as_hook(self.payloadpage_page), 80)  # before that of prepare_shell
        self.register_magics(magics.RunMagics)  # with a debugger
        self.InteractiveTB = AutoFormattedTB(mode="Context", theme_name="neutral", tb_offset=1)
        self._set_leaving()

    def init_events(self) -> None:
        """Make the events."""
        self.events = CellEvents(self, available_events)
        self.events.register("pre_execute", self._clear_warning_registry)

    def init_user_ns(self) -> None:
        """Fill the user's namespace, at the start and again for %reset."""
        super().init_user_ns()
        self.lazy_names = LazyNames(self.user_ns)
        self._set_leaving()

    def _set_leaving(self) -> None:
        leave = self.exiter if self.has_person else Leave()
        leaving = {"exit": leave, "quit": leave}
        self.user_ns.update(leaving)
        self.user_ns_hidden.update(leaving)

    def system(self, cmd: str) -> None:
        """Run a shell command whose output is the cell's."""
        magics.run_shell_command(self, cmd)

    def ask_exit(self) -> None:
        """Tell the client that the person wants to leave; the kernel's end is the client's to order."""
        self.payload_manager.write_payload({"source": "ask_exit", "keepkernel": self.keepkernel_on_exit})

    def ask_yes_no(self, *args: Any, **kwargs: Any) -> bool:
        """Ask the person; if there is none, say so, and magics do as their documentation says for this case."""
        if self.has_person:
            return bool(super().ask_yes_no(*args, **kwargs))
        raise StdinNotImplementedError("Nobody is here to answer.")

    def set_next_input(self, text: str, replace: bool = False) -> None:
        """Show what a notebook would put into a cell, if there is none."""
        if self.has_person:
            super().set_next_input(text, replace)
            return
        print(text)
        magics.say(magics.NOT_RUN)

    def enable_matplotlib(self, gui: str | None = None) -> Any:
        """Choose a backend that needs no screen."""
        return super().enable_matplotlib(display.backend_for(gui))

    def enable_gui(self, gui: str | None = None) -> None:
        """Start no event loop of a window system."""
        if gui not in (None, "none", "inline"):
            magics.say(display.NO_LOOP.format(gui))

    def _object_find(self, oname: str, namespaces: Any = None) -> Any:
        """Find what `?` and its like ask about, the well-known names included."""
        name = oname.partition(".")[0]
        if name in NAMES:
            self.lazy_names.provide(name)
        return super()._object_find(oname, namespaces)

    def show_usage_error(self, exc: Any) -> None:
        """Show a usage error in one line, as an error only."""
        self._showtraceback(type(exc), exc, [f"{type(exc).__name__}: {exc}"])

    def _showtraceback(self, etype: Any, evalue: Any, stb: list[str]) -> None:
        """Show an error, as text if the cell goes on; a child that the code forked ends with it, as a program does."""
        if advice := next_steps.advice(evalue):
            stb = [*stb, "", advice]
        if not self.kernel.session.is_fork:
            if self._is_raised_again(etype):
                return
            if self.kernel.session.unwatched and self._goes_on():
                print(*stb, sep="\n", file=sys.stderr)
            else:
                super()._showtraceback(etype, evalue, stb)
            return
        status = 1
        if issubclass(etype, SystemExit):
            is_status = evalue.code is None or isinstance(evalue.code, int)
            status, stb = (evalue.code or 0, []) if is_status else (1, [str(evalue.code)])
        os.write(2, "".join(f"{line}\n" for line in stb).encode("utf-8", "backslashreplace"))
        end_fork(status & 0xFF)

    def _goes_on(self) -> bool:
        """Return whether the code that shows an error continues; an error in showing its result ends it.

        The error of a cell within a cell does not: the client must see it, also if what is printed is captured.
        """
        return getattr(self.displayhook, "msg", None) is None and _goes_to(sys._getframe()) not in (_CELL, None)

    def _is_raised_again(self, etype: type[BaseException]) -> bool:
        """Return whether an error of a cell within a cell is about to be raised, and so shown, by the outer one."""
        if self.depth < 2 or _goes_to(frame := sys._getframe()) is not _CELL:
            return False
        while frame.f_code is not _CELL:
            assert frame.f_back
            frame = frame.f_back
        was_interrupted = issubclass(etype, INTERRUPTIONS) and interrupts.raised() > 0
        return was_interrupted or _goes_to(frame.f_back) is _RAISING

    def _format_exception_for_storage(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Format nothing: no exceptions are stored, and an interrupted cell would take as long again to end."""
        return {}

    def showtraceback(self, exc_tuple: Any = None, *args: Any, exception_only: bool = False, **kwargs: Any) -> None:
        """Show `SystemExit: 3` for an exit, an interrupt as one, the usual traceback for everything else."""
        etype, value, _ = self._get_exc_info(exc_tuple)
        if _goes_to(sys._getframe()) is _RAISING:
            self._failure = value
            return
        if interrupt := _interrupt_before(value):
            _format_plainly(self, type(interrupt), interrupt, interrupt.__traceback__)
        elif exception_only and issubclass(etype, SystemExit):
            self._showtraceback(etype, value, [f"SystemExit: {value}"])
        else:
            super().showtraceback(exc_tuple, *args, exception_only=exception_only, **kwargs)


_CELL = CellShell.run_cell_async.__code__
_RAISING = SandboxShell.run_raising.__code__


def _goes_to(frame: FrameType | None) -> CodeType | None:
    """Return the code to which an error goes: a cell's end, `run_raising`, or user code, which continues; or None."""
    while frame is not None and frame.f_code not in (_CELL, _RAISING) and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code if frame else None


SandboxShell.__name__ = SandboxShell.__qualname__ = ZMQInteractiveShell.__name__  # by which libraries know a notebook
