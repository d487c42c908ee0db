"""Every magic that IPython has in the sandbox: it works, or one sentence says why not."""

from __future__ import annotations

import ast
import struct
from collections.abc import Callable

import pytest

from agent_tools.results.execution import Display, Execution, Result, Stream, pictures_of
from agent_tools.tools import CodeInterpreter

pytestmark = pytest.mark.docker

NO_DEBUGGER = "UsageError: There is no input for a debugger's prompt here"
NO_CLIENT = "no other client can reach this kernel"
NOT_RUN = "This is only shown and was not run"
PREPARED = """
import os
open('f.py', 'w').write('print("from", __name__)\\n')
x, y = 1, 2
"""

# name -> cell, and what its answer holds ('' is no answer at all)
LINES: dict[str, tuple[str, str]] = {
    "alias": ("%alias hello echo hi\n%hello", "hi"),
    "alias_magic": ("%alias_magic t time", "Created `%t` as an alias for `%time`."),
    "autoawait": ("%autoawait", "IPython autoawait is `on`"),
    "autocall": ("%autocall 0", "Automatic calling is: Off"),
    "automagic": ("%automagic\n%automagic", "Automagic is ON"),
    "autosave": ("%autosave 60", "there is no notebook to save here"),
    "bookmark": ("%bookmark here\n%bookmark -l", "here -> /workspace"),
    "cat": ("%cat f.py", 'print("from"'),
    "cd": ("%cd -q /tmp\n%cd /workspace", "/workspace"),
    "clear": ("%clear", ""),
    "code_wrap": ("%code_wrap --list-all", "\n"),
    "colors": ("%colors nocolor", ""),
    "conda": ("%conda install -y nosuchpackage", "nosuchpackage cannot be installed here"),
    "config": ("%config InteractiveShell.ast_node_interactivity = 'last_expr'", ""),
    "connect_info": ("%connect_info", NO_CLIENT),
    "cp": ("%cp f.py g.py", ""),
    "debug": ("%debug", NO_DEBUGGER),
    "dhist": ("%dhist", "Directory history"),
    "dirs": ("%dirs", "[]"),
    "doctest_mode": ("%doctest_mode\n%doctest_mode", "Doctest mode is: OFF"),
    "ed": ("%ed f.py", "there is no editor here"),
    "edit": ("%edit", "there is no editor here"),
    "env": ("%env COLOUR=blue\nos.environ['COLOUR']", "blue"),
    "gui": ("%gui qt", "there is no screen here"),
    "hist": ("%hist 1", "x, y = 1, 2"),
    "history": ("%history -f code.py 1\nopen('code.py').read()", "x, y = 1, 2"),
    "killbgscripts": ("%killbgscripts", "background processes were killed"),
    "ldir": ("%ldir", ""),
    "less": ("%less f.py", 'print("from"'),
    "lf": ("%lf", "f.py"),
    "lk": ("%lk", ""),
    "ll": ("%ll", "f.py"),
    "load": ("%load f.py", NOT_RUN),
    "load_ext": ("%load_ext autoreload\n%autoreload 2", ""),
    "loadpy": ("%loadpy f.py", 'print("from"'),
    "logoff": ("%logoff", "Logging hasn't been started yet"),
    "logon": ("%logon", "Logging hasn't been started yet"),
    "logstart": ("%logstart log.py", "Activating auto-logging"),
    "logstate": ("%logstate", "Filename       : log.py"),
    "logstop": ("%logstop", ""),
    "ls": ("%ls", "f.py"),
    "lsmagic": ("%lsmagic", "Available line magics"),
    "lx": ("%lx", ""),
    "macro": ("%macro m 1", "Macro `m` created"),
    "magic": ("%magic", "IPython's 'magic' functions"),
    "mamba": ("%mamba install nosuchpackage", "nosuchpackage cannot be installed here"),
    "man": ("%man ls", "there are no manual pages here"),
    "matplotlib": ("%matplotlib inline", ""),
    "micromamba": ("%micromamba create -n new", "Packages cannot be changed here"),
    "mkdir": ("%mkdir d", ""),
    "more": ("%more f.py", 'print("from"'),
    "mv": ("%mv g.py h.py", ""),
    "notebook": ("%notebook n.ipynb", "no notebook is kept here"),
    "page": ("%page x", "1"),
    "pastebin": ("%pastebin f.py", "nothing can be published from here"),
    "pdb": ("%pdb on", "There is no input for a debugger"),
    "pdef": ("%pdef print", "print(*args"),
    "pdoc": ("%pdoc print", "Prints the values to a stream"),
    "pfile": ("%pfile json", "JSON (JavaScript Object Notation)"),
    "pinfo": ("%pinfo pd.read_csv", "pd.read_csv("),
    "pinfo2": ("%pinfo2 json.dumps", "def dumps("),
    "pip": ("%pip install -q numpy nosuchpackage", "nosuchpackage cannot be installed here"),
    "popd": ("%pushd /tmp\n%popd", "popd -> /workspace"),
    "pprint": ("%pprint\n%pprint", "Pretty printing has been turned ON"),
    "precision": ("%precision 3\n%precision %r", "%r"),
    "prun": ("%prun np.zeros(3)", "function calls in"),
    "psearch": ("%psearch PREPARE* builtin", ""),
    "psource": ("%psource json.dumps", "def dumps("),
    "pushd": ("%pushd /tmp\n%popd", "/tmp"),
    "pwd": ("%pwd", "/workspace"),
    "pycat": ("%pycat f.py", 'print("from"'),
    "pylab": ("%pylab inline", "Populating the interactive namespace"),
    "qtconsole": ("%qtconsole", NO_CLIENT),
    "quickref": ("%quickref", "Quick Reference Card"),
    "recall": ("%recall 1", "x, y = 1, 2"),
    "rehashx": ("%rehashx", ""),
    "reload_ext": ("%reload_ext autoreload", ""),
    "rep": ("%rep 1", NOT_RUN),
    "rerun": ("%rerun 1", "=== Executing: ==="),
    "reset": ("%reset\nassert 'x' not in globals()", ""),
    "reset_selective": ("x = 1\n%reset_selective x\nassert 'x' not in globals()", ""),
    "rm": ("%rm h.py", ""),
    "rmdir": ("%rmdir d", ""),
    "run": ("%run f.py", "from __main__"),
    "save": ("%save s.py 1", "were written to file `s.py`"),
    "sc": ("%sc listed=ls f.py\nlisted", "f.py"),
    "set_env": ("%set_env COLOUR red", "env: COLOUR=red"),
    "store": ("%store x", "Stored 'x' (int)"),
    "subshell": ("%subshell", "Kernel does not support subshells"),
    "sx": ("%sx echo hi", "['hi']"),
    "system": ("%system echo hi", "['hi']"),
    "tb": ("%tb", "UsageError: %qtconsole"),
    "time": ("%time sum(range(10))", "45"),
    "timeit": ("%timeit -n 2 -r 2 1", "2 loops each"),
    "unalias": ("%unalias hello", ""),
    "unload_ext": ("%unload_ext autoreload", "autoreload extension"),
    "uv": ("%uv pip install nosuchpackage", "nosuchpackage cannot be installed here"),
    "who": ("%who int", "x"),
    "who_ls": ("%who_ls int", "'x'"),
    "whos": ("%whos int", "Variable"),
    "xdel": ("%xdel y", ""),
    "xmode": ("%xmode Context", "Exception reporting mode: Context"),
}
CELLS: dict[str, tuple[str, str]] = {
    "!": ("%%!\necho hi", "['hi']"),
    "HTML": ("%%HTML\n<b>x</b>", "<b>x</b>"),
    "SVG": ("%%SVG\n<svg></svg>", "SVG picture, 6 characters of source"),
    "bash": ("%%bash\necho hi", "hi"),
    "capture": ("%%capture out\nprint('hi')", ""),
    "code_wrap": ("%%code_wrap w\n__code__\nprint('wrapped')", ""),
    "debug": ("%%debug\nz = 1", NO_DEBUGGER),
    "file": ("%%file f2.py\n1", "Writing f2.py"),
    "html": ("%%html\n<b>x</b>", "<b>x</b>"),
    "javascript": ("%%javascript\nalert(1)", "IPython.core.display.Javascript"),
    "js": ("%%js\nalert(1)", "IPython.core.display.Javascript"),
    "latex": ("%%latex\n$x$", "$x$"),
    "markdown": ("%%markdown\n# x", "# x"),
    "perl": ("%%perl\nprint 6 * 7", "42"),
    "prun": ("%%prun\nnp.zeros(3)", "Ordered by: internal time"),
    "pypy": ("%%pypy\n1", "Couldn't find program: 'pypy'"),
    "python": ("%%python\nprint(6 * 7)", "42"),
    "python2": ("%%python2\n1", "Couldn't find program: 'python2'"),
    "python3": ("%%python3\nprint(6 * 7)", "42"),
    "ruby": ("%%ruby\n1", "Couldn't find program: 'ruby'"),
    "script": ("%%script bash\necho hi", "hi"),
    "sh": ("%%sh\necho hi", "hi"),
    "svg": ("%%svg\n<svg></svg>", "SVG picture, 6 characters of source"),
    "sx": ("%%sx\necho hi", "['hi']"),
    "system": ("%%system\necho hi", "['hi']"),
    "time": ("%%time\nsum(range(10))", "45"),
    "timeit": ("%%timeit -n 2 -r 2\n1", "2 loops each"),
    "writefile": ("%%writefile f3.py\n1", "Writing f3.py"),
}
FOREVER = 120.0  # seconds that only a failing test waits: a busy machine takes its time to import what draws
REFUSED = {"connect_info", "debug", "ed", "edit", "man", "notebook", "pastebin", "qtconsole"}
LAST = ("who", "who_ls", "whos", "xdel", "reset_selective", "reset")  # in this order, after all others


def _told(execution: Execution) -> str:
    """All text of an answer, except that of its figures."""
    told = [o.text for o in execution.outputs if isinstance(o, Stream | Result | Display) and not pictures_of(o)]
    return "".join(told) + (execution.error.text if execution.error else "")


def _is_as_expected(name: str, expected: str, execution: Execution) -> bool:
    told = _told(execution)
    if name in REFUSED:
        return not execution.ok and expected in told and told.count("\n") == 0 and told.startswith("UsageError: ")
    return execution.ok and (expected in told if expected else told == "")


def _figures(execution: Execution) -> list[tuple[int, int]]:
    """The size of each PNG shown, in pixels."""
    found = [each.data for output in execution.outputs for each in pictures_of(output) if each.suffix == ".png"]
    return [struct.unpack(">II", data[16:24]) for data in found]  # type: ignore[misc]


def test_every_magic_works_or_is_refused_in_one_sentence(new_tool: Callable[..., CodeInterpreter]) -> None:
    tool = new_tool(timeout=FOREVER)
    tool.run(PREPARED)
    listed = tool.run("{kind: sorted(m) for kind, m in get_ipython().magics_manager.lsmagic().items()}").result
    assert listed is not None
    assert ast.literal_eval(listed.text) == {"line": sorted(LINES), "cell": sorted(CELLS)}
    wrong = {}
    for name, (cell, expected) in [*LINES.items(), *CELLS.items()]:
        if name not in LAST:
            execution = tool.run(cell)
            tool.run("%code_wrap --remove w") if name == "code_wrap" else None
            if not _is_as_expected(name, expected, execution):
                wrong[cell] = _told(execution)
    for name in LAST:
        execution = tool.run(LINES[name][0])
        if not _is_as_expected(name, LINES[name][1], execution):
            wrong[LINES[name][0]] = _told(execution)
    assert wrong == {}


@pytest.fixture(scope="module")
def plain(shared_tool: CodeInterpreter) -> tuple[int, int]:
    """The size of a figure before a backend was asked for."""
    (size,) = _figures(shared_tool.run("plt.plot([1, 2])\nplt.show()", timeout=FOREVER))
    return size


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param("%matplotlib inline", "", id="inline"),
        pytest.param("%matplotlib", "Using matplotlib backend: inline", id="no backend named"),
        pytest.param("%matplotlib widget", "figures are shown as pictures", id="widget"),
        pytest.param("%matplotlib qt", "figures are shown as pictures", id="a window system"),
        pytest.param("%matplotlib agg", "", id="files alone"),
        pytest.param("import matplotlib; matplotlib.use('Agg')", "", id="files alone by a function"),
        pytest.param("plt.switch_backend('agg')", "", id="files alone by pyplot"),
        pytest.param("matplotlib.use('TkAgg')", "figures are shown as pictures", id="a window system by a function"),
        pytest.param("%pylab", "Populating the interactive namespace", id="pylab"),
        pytest.param("%config InlineBackend.figure_format = 'svg'", "as PNG here, not as SVG", id="svg"),
        pytest.param("%config InlineBackend.figure_formats = set(['pdf'])", "as PNG here, not as PDF", id="pdf"),
        pytest.param("%config InlineBackend.figure_format = 'png'", "", id="png"),
        pytest.param(
            "from matplotlib_inline.backend_inline import set_matplotlib_formats as s; s('svg')",
            "as PNG here, not as SVG",
            id="svg by its function",
        ),
    ],
)
def test_a_figure_is_shown_once_and_alike_whatever_backend_is_asked_for(
    shared_tool: CodeInterpreter, plain: tuple[int, int], line: str, said: str
) -> None:
    asked = shared_tool.run(line)
    assert asked.ok
    assert said in _told(asked) if said else _told(asked) == ""
    assert _figures(shared_tool.run("plt.plot([1, 2])\nplt.show()")) == [plain]
    assert _figures(shared_tool.run("plt.plot([1, 2]);")) == [plain]


def test_a_figure_for_fine_screens_has_twice_the_pixels(shared_tool: CodeInterpreter, plain: tuple[int, int]) -> None:
    shared_tool.run("%config InlineBackend.figure_format = 'retina'")
    (fine,) = _figures(shared_tool.run("plt.plot([1, 2])\nplt.show()"))
    assert fine == pytest.approx((2 * plain[0], 2 * plain[1]), abs=4)  # the margins are rounded
    shared_tool.run("%config InlineBackend.figure_format = 'png'")


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param("import matplotlib\nmatplotlib.use('Agg')", id="a function"),
        pytest.param("import os\nos.environ['MPLBACKEND'] = 'agg'", id="the environment"),
        pytest.param("open('m.py', 'w').write('import matplotlib\\nmatplotlib.use(\"agg\")')\nimport m", id="a module"),
        pytest.param("import matplotlib\nmatplotlib.use('svg')", id="drawings of lines"),
    ],
)
def test_figures_are_shown_under_a_backend_that_was_chosen_before_they_were_drawn(
    fresh_tool: CodeInterpreter, chosen: str
) -> None:
    code = f"{chosen}\nimport matplotlib.pyplot as plt\nplt.plot([1]); plt.show(); print('between'); plt.plot([2]);"
    first = fresh_tool.run(code, timeout=FOREVER)
    shown = [type(output) for output in first.outputs]
    assert (shown, first.stderr) == ([Display, Stream, Display], ""), first
    assert len(_figures(first)) == 2
    assert len(_figures(fresh_tool.run("plt.plot([1, 2])\nplt.show()"))) == 1
    assert _figures(fresh_tool.run("plt.figure(); 1")) == []  # an empty one
    assert len(_figures(fresh_tool.run("f, a = plt.subplots(); a.plot([1]); plt.close(f); f"))) == 1


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        pytest.param("!pip install 'numpy>=1'", "Requirement already satisfied: numpy>=1 (", id="met"),
        pytest.param("!pip install -q 'numpy<1'", "numpy<1 cannot be installed here", id="another version"),
        pytest.param("!python3 -m pip install x-y", "x-y cannot be installed here", id="by the interpreter"),
        pytest.param("!pip install numpy>=1", "Requirement already satisfied: numpy>=1 (", id="without quotes"),
        pytest.param("%pip install", "Packages cannot be changed here", id="nothing named"),
        pytest.param("%pip list", "numpy==", id="list"),
        pytest.param("!pip freeze >f.txt\n!grep numpy f.txt", "numpy==", id="list into a file"),
        pytest.param("pkg = 'x-y'\n!pip install {pkg}", "x-y cannot be installed here", id="by a variable"),
        pytest.param("!pip freeze | head -1", "==", id="list through a pipeline"),
        pytest.param("!pip install x-y 2>&1 | tail -3", "x-y cannot be installed here", id="through a pipeline"),
        pytest.param("os.system('pip3 install x-y')", "x-y cannot be installed here", id="by os.system"),
        pytest.param(
            "import subprocess, sys\nsubprocess.check_call([sys.executable, '-m', 'pip', 'install', 'x-y'])",
            "x-y cannot be installed here",
            id="by a subprocess",
        ),
        pytest.param("import pip\npip.main(['install', 'x-y'])", "x-y cannot be installed here", id="by a call"),
        pytest.param("!python -m pip show numpy; echo $?", "1", id="what is not answered fails"),
        pytest.param("import torch", "the option packages=['torch'] adds it", id="a missing package"),
        pytest.param("open('g.py')", "Did you mean 'f.py'?", id="a missing file"),
        pytest.param("input()", "put the value into the code", id="input"),
        pytest.param("from tqdm.notebook import tqdm\nfor _ in tqdm([1]): pass", "1/1", id="bars of a notebook"),
        pytest.param("from tqdm.auto import trange\nfor _ in trange(1): pass", "1/1", id="bars of whatever is there"),
        pytest.param(
            "import nest_asyncio\nnest_asyncio.apply()\nimport asyncio\nasync def f(): return 5\nasyncio.run(f())",
            "5",
            id="nested event loops",
        ),
        pytest.param(
            "import warnings\nfrom IPython.display import display\n"
            "display({'application/json': {'a': float('nan')}, 'text/plain': 'shown'}, raw=True)",
            "shown",
            id="a display with NaN",
        ),
        pytest.param("!echo pip install x", "pip install x", id="other commands"),
        pytest.param("!echo {1..3}; [[ a == a ]] && diff <(echo a) <(echo a)", "1 2 3", id="in the words of bash"),
        pytest.param("found = !echo {1..3}\nprint(found)", "['1 2 3']", id="in the words of bash, assigned"),
        pytest.param("cmd = 'x'\n!echo {cmd} $cmd", "x x", id="variables in a command"),
        pytest.param("def f(n):\n    !echo {n}\nf(7)", "7", id="variables of a function in a command"),
        pytest.param("!cd /tmp", "%cd changes the kernel's", id="cd alone"),
        pytest.param("!cd /tmp && pwd", "/tmp", id="cd with more"),
        pytest.param("!kill -9 $$\nprint(_exit_code)", "-9", id="a command ended by a signal"),
        pytest.param("%run -d f.py", NO_DEBUGGER, id="a debugged file"),
        pytest.param("np.zeros?", "zeros(", id="help on a name not imported yet"),
    ],
)
def test_what_models_write_out_of_habit_is_answered(shared_tool: CodeInterpreter, cell: str, told: str) -> None:
    shared_tool.run("open('f.py', 'w').write('1')")
    assert told in _told(shared_tool.run(cell))


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        pytest.param(
            "%%capture c\nprint(1)\n!echo two; echo err >&2\nprint(3)", "('1\\ntwo\\n3\\n', 'err\\n')", id="the magic"
        ),
        pytest.param(
            "with contextlib.redirect_stdout(io.StringIO()) as out:\n    !python3 -c \"print('ä' * 300_000, end='')\"",
            "(300000, 'ää",
            id="much of it",
        ),
        pytest.param(
            "with contextlib.redirect_stdout(io.StringIO()) as out:\n    !echo here; yes &", "'here", id="what runs on"
        ),
    ],
)
def test_what_commands_write_is_captured_with_the_rest(shared_tool: CodeInterpreter, cell: str, told: str) -> None:
    shared_tool.run("import contextlib, io")
    assert _told(shared_tool.run(cell)) == ""
    shown = "(c.stdout, c.stderr)" if "%%capture" in cell else "len(out.getvalue()), out.getvalue()[:10]"
    assert told in _told(shared_tool.run(shown))
    assert shared_tool.run("!pkill yes; echo $?").ok


def test_exit_keeps_the_kernel_after_a_reset(shared_tool: CodeInterpreter) -> None:
    shared_tool.run("%reset -f")
    assert shared_tool.run("exit()\nprint('not reached')").stdout == ""
    assert _told(shared_tool.run("quit")) == "exit() ends the code here; variables stay."
    assert _told(shared_tool.run("6 * 7")) == "42"
